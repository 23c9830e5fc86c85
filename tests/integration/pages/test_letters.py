"""Dead letters: counted, grouped by their errors, listed in pages, and shown one by one, without their contents."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable

import pytest

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.views import letters as view
from offsetstore.protocol.letters import NewLetter, Payload
from tests.integration.conftest import Query
from tests.integration.pages.conftest import GROUP, P0, P1, Site, advance, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

CHECK = LetterError("RowsRefused", "a text with SECRET", "23514", "public.payments", "positive", "amount")
PARSE = LetterError("ValueError", "another SECRET", traceback="line 1 SECRET")
RECORD = Payload(b"SECRET", b"SECRET", (("SECRET", b"SECRET"),), 0, 0)
TIME = "2025-01-01T00:00:00+00:00"


def cursor(*fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def dead(offset: int, tp: TopicPartition = P0, error: LetterError = CHECK) -> NewLetter:
    return NewLetter(tp, offset, "refused" if error == CHECK else "rejected", error, 2, None, RECORD)


def give_up(store: OffsetStore, letters: Iterable[NewLetter]) -> None:
    """Let a job pass ten records of each partition, with these letters."""
    kept = list(letters)
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    advance(store, claim, {letter.topic_partition: OffsetRange(0, 10) for letter in kept}, kept)


@pytest.fixture
def some(site: Site) -> Site:
    """Three letters with one error, of which one is to be replayed, one with another, and one that is settled."""
    give_up(site.store, [dead(2), dead(4), dead(6), dead(1, P1, PARSE), dead(3, P1, PARSE)])
    site.store.request_replay(GROUP, LetterKey(P0, 4), reason="ticket 17", actor="ana")
    site.store.discard(GROUP, LetterKey(P1, 1), reason="a test", actor="ben")
    site.take()
    return site


def listed(page: str) -> list[str]:
    """The letters of the list."""
    _before, _, body = page.partition('id="letters"')
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', body)


def test_letters_are_counted_and_grouped_by_errors_which_lead_to_them(some: Site) -> None:
    page = some.page("/letters")
    for text in (
        "3 dead",
        "1 requested",
        "1 discarded",
        "The errors of all open letters.",
        "3 refused RowsRefused 23514 public.payments positive amount",
        "1 rejected ValueError - - - -",
    ):
        assert text in text_of(page)

    links = [html.unescape(one) for one in re.findall(r'href="(/letters?\?[^"]*)"', page)]
    [of_error] = [one for one in links if "constraint=positive" in one]
    found = some.client.get(of_error).text
    assert sorted(listed(found)) == ["payments:0:2", "payments:0:4", "payments:0:6"]
    assert "Only letters with cause refused , error class RowsRefused" in text_of(found)
    [other] = [one for one in links if "sqlstate=&" in one]
    assert listed(some.client.get(other).text) == ["payments:1:3"]
    answer = some.client.get(next(one for one in links if one.startswith("/letter?")))
    assert answer.status_code == 200
    assert "settled" not in text_of(answer.text)


def test_the_list_is_filtered_and_what_cant_be_meant_is_refused(some: Site) -> None:
    asked: dict[str, str]
    for asked, found in (
        ({}, ["0:2", "0:4", "0:6", "1:3"]),
        ({"state": "requested"}, ["0:4"]),
        ({"state": "all", "partition": "1"}, ["1:1", "1:3"]),
        ({"topic": "", "partition": ""}, ["0:2", "0:4", "0:6", "1:3"]),
        ({"topic": "refunds"}, []),
        ({"cause": "rejected"}, ["1:3"]),
        ({"state": "no such state", "sqlstate": ""}, ["1:3"]),
    ):
        assert sorted(listed(some.page("/letters", **asked))) == [f"payments:{one}" for one in found], asked

    place = {"topic": "payments", "partition": "0", "offset": "2"}
    for name, wrong in (
        *(("partition", number) for number in ("-1", "9" * 5000, str(2**31))),
        ("topic", "a\0b"),
        ("sqlstate", "\0"),
        ("cause", "bad luck"),
        ("after", "x"),
        *(("after", cursor(TIME, *more, "")) for more in (("t", float("inf"), 0), ("t", 0, 2**63))),
        *(("after", cursor(TIME, topic, 0, 0, "")) for topic in ("\0", "\ud800")),
        ("after", base64.urlsafe_b64encode(b"[" * 3000).decode()),
    ):
        assert some.get("/letters", **{name: wrong}).status_code == 400, (name, wrong)
    for name, wrong in (
        ("partition", "x"),
        ("offset", str(2**63)),
        ("topic", ""),
        ("topic", "\0"),
        ("topic_id", "\0"),
    ):
        assert some.get("/letter", **{**place, name: wrong}).status_code == 400, (name, wrong)
    assert some.get("/letter", topic="payments", partition=0).status_code == 400


def test_a_long_list_comes_in_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "ON_A_PAGE", 2)
    monkeypatch.setattr(view, "WITHIN", 3)
    give_up(site.store, [dead(offset) for offset in (1, 2, 3, 4, 5)])
    site.take()
    first, *others = site.follow("/letters", partition=0)
    assert "3+ dead" in text_of(first)
    assert "The errors of the newest 3 open letters." in text_of(first)
    assert ">Newest<" not in first
    assert all(">Newest<" in page for page in others)
    seen = [one for page in (first, *others) for one in listed(page)]
    assert seen == [f"payments:0:{offset}" for offset in (5, 4, 3, 2, 1)]


def test_a_filter_that_nothing_recent_fits_can_be_continued(
    site: Site, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "WITHIN", 2)
    give_up(site.store, [dead(1, P0), dead(1, P1), dead(2, P1), dead(3, P1)])
    query("UPDATE dead_letters SET created_at = created_at - interval '1 hour' WHERE partition = 0")
    site.take()
    first, second, *_ = site.follow("/letters", partition=0)
    assert "None of the 2 letters that were looked at matches; there are older ones" in text_of(first)
    assert (listed(first), listed(second)) == ([], ["payments:0:1"])


@pytest.mark.behaviour("DASH-4")
def test_one_letter_is_shown_without_its_contents_and_how_to_see_them(some: Site) -> None:
    place = {"topic": "payments", "partition": "1", "offset": "1"}
    page = some.text("/letter", **place)
    for text in (
        "Dead letter payments:1:1",
        "discarded: given up",
        "Decided by ben Reason a test",
        "offsetstore dead-letters show -g billing payments:1:1",
    ):
        assert text in page
    for path in ("/letter", "/letters"):
        for state in ("open", "all"):
            assert "SECRET" not in some.get(path, **place, state=state).text
    for name, other in (("offset", "7"), ("topic_id", "another")):
        assert some.get("/letter", **{**place, name: other}).status_code == 404


def test_a_group_without_letters_says_how_to_have_them(site: Site) -> None:
    site.claim()
    assert "dead_letters=DeadLetters()" in site.text("/letters")
    assert site.get("/letters", group="shipping").status_code == 404
