"""What browsers send of a form: a hidden text comes back as it was, and a ticket is good once, for one form."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetstore.monitoring.dashboard.forms import (
    LIFETIME,
    MOST_USED,
    TicketRefused,
    Tickets,
    hidden,
    plain_query,
)

pytestmark = pytest.mark.behaviour("OPS-27")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@example("two\nlines\r\n~%0A")
def test_a_hidden_text_survives_a_browser(text: str) -> None:
    [(name, value)] = re.findall(r'^<input type="hidden" name="(.*)" value="([^"]*)">$', hidden("name", text))
    as_sent = re.sub("\r\n|\r|\n", "\r\n", unescape(value))
    found = plain_query(urlencode({name: as_sent, "other": text}).encode())
    assert parse_qsl(found.decode(), keep_blank_values=True) == [("name", text), ("other", text)]


def test_what_was_not_quoted_stays() -> None:
    for query in (b"", b"q=%7E&x=~", b"a=1&a=2&b=", b"name=%FF"):
        assert parse_qsl(plain_query(query).decode(), keep_blank_values=True) == parse_qsl(
            query.decode(), keep_blank_values=True
        )
    assert plain_query(b"~name=" + quote("%00").encode()) == b"name=%00"  # for the guard to refuse


# --- tickets

FORM = ("pause", "billing", {"until": "", "premise": "x"})


@pytest.mark.behaviour("DASH-3")
def test_a_ticket_is_good_for_one_form_once_and_for_fifteen_minutes() -> None:
    now = [1000.0]
    tickets = Tickets(lambda: now[0])
    action, group, values = FORM
    one, late = (tickets.issue(*FORM) for _ in range(2))
    time_of, nonce, signature = one.split(".")
    for foreign in (
        lambda: tickets.take(one, "resume", group, values),
        lambda: tickets.take(one, action, "shipping", values),
        lambda: tickets.take(one, action, group, {**values, "until": "2099"}),
        lambda: tickets.take(one, action, group, {**values, "premise": ""}),
        lambda: tickets.take(one, action, group, {"until": ""}),
        lambda: Tickets(lambda: now[0]).take(one, *FORM),  # of a server that was started again
        lambda: tickets.take(f"{int(time_of) + 1}.{nonce}.{signature}", *FORM),
        lambda: tickets.take(f"{time_of}.{nonce}x.{signature}", *FORM),
        *(
            lambda ticket=ticket: tickets.take(ticket, *FORM)
            for ticket in ("", "1.2", "9999999999.x.y", "²٣.é.ü", "9" * 5000 + ".x.y", one[:-1])
        ),
    ):
        expect_refused(foreign, "does not come from this server")
    now[0] += LIFETIME - 1
    tickets.take(one, *FORM)  # it was not used up
    expect_refused(lambda: tickets.take(one, *FORM), "sent already")
    now[0] += 1
    expect_refused(lambda: tickets.take(late, *FORM), "older than 15 minutes")


@pytest.mark.behaviour("DASH-3")
def test_used_tickets_are_forgotten_with_their_time_and_not_before() -> None:
    now = [1000.0]
    tickets = Tickets(lambda: now[0])
    first = [tickets.issue(*FORM) for _ in range(MOST_USED)]
    for ticket in first:
        tickets.take(ticket, *FORM)
    expect_refused(lambda: tickets.take(tickets.issue(*FORM), *FORM), "Too many")
    now[0] += LIFETIME
    tickets.take(tickets.issue(*FORM), *FORM)
    expect_refused(lambda: tickets.take(first[0], *FORM), "older")


def test_of_requests_at_the_same_time_one_alone_gets_through() -> None:
    tickets = Tickets()
    ticket = tickets.issue(*FORM)

    def take(_number: int) -> bool:
        try:
            tickets.take(ticket, *FORM)
        except TicketRefused:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(take, range(200))) == 1


def expect_refused(taking: Callable[[], None], words: str) -> None:
    with pytest.raises(TicketRefused, match=words):
        taking()
