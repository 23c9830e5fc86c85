"""Dead letters: counted, grouped by their errors, listed in pages, and shown one by one, without their contents."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable

import httpx
import pytest

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.monitoring.dashboard.views import letters as view
from offsetstore.protocol.letters import NewLetter, Payload
from tests.integration.conftest import Query
from tests.integration.pages.conftest import P0, P1, advance, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

CHECK = LetterError("RowsRefused", "a text with SECRET", "23514", "public.payments", "positive", "amount")
PARSE = LetterError("ValueError", "another SECRET", traceback="line 1 SECRET")
RECORD = Payload(b"SECRET", b"SECRET", (("SECRET", b"SECRET"),), 0, 0)


def cursor(*fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def dead(offset: int, tp: TopicPartition = P0, error: LetterError = CHECK) -> NewLetter:
    return NewLetter(tp, offset, "refused" if error == CHECK else "rejected", error, 2, None, RECORD)


def give_up(store: OffsetStore, letters: Iterable[NewLetter], group: str = "billing") -> None:
    """Let a job pass ten records of each partition, with these letters."""
    kept = list(letters)
    ranges = {tp: OffsetRange(0, 10) for tp in {letter.topic_partition for letter in kept}}
    claim = store.claim(group, topics=sorted({tp.topic for tp in ranges}), mirror_every=None)
    advance(store, claim, ranges, kept)


@pytest.fixture
def some(store: OffsetStore, server: DashboardServer) -> None:
    """Three letters with one error, of which one is to be replayed, and one that is settled."""
    give_up(store, [dead(2), dead(4), dead(6), dead(1, P1, PARSE), dead(3, P1, PARSE)])
    store.request_replay("billing", LetterKey(P0, 4), reason="ticket 17", actor="ana")
    store.discard("billing", LetterKey(P1, 1), reason="a test", actor="ben")
    server.snapshots.take()


def listed(answer: httpx.Response) -> list[str]:
    """The letters of the list."""
    assert answer.status_code == 200, answer.text
    _before, _, body = answer.text.partition('id="letters"')
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', body)


@pytest.mark.usefixtures("some")
def test_letters_are_counted_and_grouped_by_what_went_wrong(client: httpx.Client) -> None:
    page = text_of(client.get("/letters", params={"group": "billing"}))

    for text in ("3 dead", "1 requested", "1 discarded"):
        assert text in page
    assert "The errors of all open letters." in page
    assert "3 refused RowsRefused 23514 public.payments positive amount" in page
    assert "1 rejected ValueError - - - -" in page


@pytest.mark.usefixtures("some")
def test_an_error_leads_to_its_letters_and_to_one_of_them(client: httpx.Client) -> None:
    page = client.get("/letters", params={"group": "billing"}).text
    links = [html.unescape(one) for one in re.findall(r'href="(/letters?\?[^"]*)"', page)]

    [of_error] = [one for one in links if "constraint=positive" in one]
    found = client.get(of_error)
    assert sorted(listed(found)) == ["payments:0:2", "payments:0:4", "payments:0:6"]
    assert "Only letters with cause refused , error class RowsRefused" in text_of(found)
    [other] = [one for one in links if "sqlstate=&" in one]
    assert listed(client.get(other)) == ["payments:1:3"]
    assert "settled" not in text_of(client.get(next(one for one in links if one.startswith("/letter?"))))


@pytest.mark.usefixtures("some")
def test_the_list_is_filtered(client: httpx.Client) -> None:
    for asked, found in (
        ({}, ["0:2", "0:4", "0:6", "1:3"]),
        ({"state": "requested"}, ["0:4"]),
        ({"state": "all", "partition": "1"}, ["1:1", "1:3"]),
        ({"topic": "", "partition": ""}, ["0:2", "0:4", "0:6", "1:3"]),
        ({"topic": "refunds"}, []),
        ({"cause": "rejected"}, ["1:3"]),
        ({"state": "no such state", "sqlstate": ""}, ["1:3"]),
    ):
        answer = client.get("/letters", params={"group": "billing", **asked})
        assert sorted(listed(answer)) == [f"payments:{one}" for one in found], asked


@pytest.mark.usefixtures("some")
def test_what_cant_be_meant_is_refused(client: httpx.Client) -> None:
    place = {"topic": "payments", "partition": "0", "offset": "2"}
    for path, wrong in (
        *(("/letters", {"partition": number}) for number in ("-1", "9" * 5000, str(2**31))),
        ("/letters", {"topic": "a\0b"}),
        ("/letters", {"sqlstate": "\0"}),
        ("/letters", {"cause": "bad luck"}),
        *(
            ("/letters", {"after": after})
            for after in (
                "x",
                *(cursor("2025-01-01T00:00:00+00:00", *more, "") for more in (("t", float("inf"), 0), ("t", 0, 2**63))),
                *(cursor("2025-01-01T00:00:00+00:00", topic, 0, 0, "") for topic in ("\0", "\ud800")),
                base64.urlsafe_b64encode(b"[" * 3000).decode(),
            )
        ),
        ("/letter", {"topic": "payments", "partition": "0"}),
        ("/letter", {**place, "partition": "x"}),
        ("/letter", {**place, "offset": str(2**63)}),
        ("/letter", {**place, "topic": "\0"}),
        ("/letter", {**place, "topic_id": "\0"}),
    ):
        assert client.get(path, params={"group": "billing", **wrong}).status_code == 400, (path, wrong)


def test_a_long_list_comes_in_pages(
    store: OffsetStore,
    server: DashboardServer,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "ON_A_PAGE", 2)
    monkeypatch.setattr(view, "WITHIN", 3)
    give_up(store, [dead(offset) for offset in (1, 2, 3, 4, 5)])
    server.snapshots.take()
    seen: list[str] = []
    answer = client.get("/letters", params={"group": "billing", "partition": "0"})
    assert "3+ dead" in text_of(answer)
    assert "The errors of the newest 3 open letters." in text_of(answer)
    assert ">Newest<" not in answer.text
    while True:
        seen += listed(answer)
        older = re.search(r'rel="next" href="([^"]*)"', answer.text)
        if older is None:
            break
        answer = client.get(html.unescape(older[1]))
        assert ">Newest<" in answer.text
    assert seen == [f"payments:0:{offset}" for offset in (5, 4, 3, 2, 1)]


def test_a_filter_that_nothing_recent_fits_can_be_continued(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "WITHIN", 2)
    give_up(store, [dead(1, P0), dead(1, P1), dead(2, P1), dead(3, P1)])
    query("UPDATE dead_letters SET created_at = created_at - interval '1 hour' WHERE partition = 0")
    server.snapshots.take()
    answer = client.get("/letters", params={"group": "billing", "partition": "0"})
    assert listed(answer) == []
    assert "None of the 2 letters that were looked at matches; there are older ones" in text_of(answer)
    older = re.search(r'rel="next" href="([^"]*)"', answer.text)
    assert older is not None
    assert listed(client.get(html.unescape(older[1]))) == ["payments:0:1"]


@pytest.mark.usefixtures("some")
@pytest.mark.behaviour("DASH-4")
def test_one_letter_is_shown_without_its_contents_and_how_to_see_them(client: httpx.Client) -> None:
    place = {"group": "billing", "topic": "payments", "partition": "1", "offset": "1"}
    answer = client.get("/letter", params=place)
    page = text_of(answer)

    assert "Dead letter payments:1:1" in page
    assert "discarded: given up" in page
    assert "Decided by ben Reason a test" in page
    assert "offsetstore dead-letters show -g billing payments:1:1" in page
    for address in ("/letter", "/letters"):
        for state in ("open", "all"):
            assert "SECRET" not in client.get(address, params={**place, "state": state}).text
    assert client.get("/letter", params={**place, "offset": "7"}).status_code == 404
    assert client.get("/letter", params={**place, "topic_id": "another"}).status_code == 404
    assert client.get("/letter", params={**place, "topic": ""}).status_code == 400


def test_a_group_without_letters_says_how_to_have_them(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    store.claim("billing", topics=["payments"], mirror_every=None)
    server.snapshots.take()
    assert "dead_letters=DeadLetters()" in text_of(client.get("/letters", params={"group": "billing"}))
    assert client.get("/letters", params={"group": "shipping"}).status_code == 404
