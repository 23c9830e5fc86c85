"""What all pages have in common: inert texts, commands to be pasted, files that were looked at, and no waits."""

from __future__ import annotations

import hashlib
import re
import time
from html import unescape
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import OffsetGap
from offsetstore.protocol.events import BatchEnded, MirrorTried, QueryStarted
from offsetstore.protocol.letters import LetterError, LetterKey, NewLetter
from tests.integration.pages.conftest import P0, Site, advance

GROUP = "our billing"


@pytest.mark.behaviour("OPS-23")
def test_they_can_be_pasted_where_the_tables_have_a_schema_of_their_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = NewLetter(P0, 0, "raised", LetterError("ValueError", "no"), 1, None, None)
    advance(site.store, site.claim(GROUP), {P0: OffsetRange(0, 4)}, [letter])
    monkeypatch.setattr(site.store.database, "schema", "our jobs")
    site.take()
    named = {"topic": "payments", "partition": "0", "offset": "0"}
    told = {
        path: re.findall("<code>(offsetstore .*?)</code>", site.page(path, group=GROUP, **named))
        for path in ("/group", "/runs", "/letters", "/letter")
    }
    asked = "-g 'our billing' --schema 'our jobs'"
    assert {path: [unescape(one) for one in commands] for path, commands in told.items()} == {
        "/group": [
            f"offsetstore resolve {asked} -t payments -b HOST:PORT",
            f"offsetstore dead-letters list {asked} --by error",
        ],
        "/runs": ["offsetstore errors -g 'our billing' --follow --schema 'our jobs'"],
        "/letters": [f"offsetstore dead-letters replay {asked} --error-class … --reason …"],
        "/letter": ["offsetstore dead-letters show -g 'our billing' payments:0:0 --schema 'our jobs'"],
    }


@pytest.mark.behaviour("DASH-4")
def test_names_and_texts_are_shown_inert(site: Site) -> None:
    odd = '<script>alert(1)</script>\u202eevil&"><img src=x>#d?e/f%20\u3164'
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eevil&amp;&#34;&gt;&lt;img src=x&gt;#d?e/f%20\\u3164"
    group, tp = f"g{odd}", TopicPartition(f"t{odd}".ljust(249, "x"), 0)
    claim = site.store.claim(group, topics=[tp.topic], mirror_every=None)
    error = LetterError(odd, "", odd, odd, odd, odd)
    advance(site.store, claim, {tp: OffsetRange(0, 10)}, [NewLetter(tp, 2, "refused", error, 2, None, None)])
    ids = {"query_id": str(uuid4()), "run_id": str(uuid4())}
    gap = OffsetGap(f"a gap {odd}", topic_partition=tp, next_step=f"Ask {odd}.")
    claim.observers.on(QueryStarted(group=group, **ids, application_id=f"app {odd}", ui_url=f"http://{odd}"))
    claim.observers.on(BatchEnded(outcome="failed", group=group, batch=7, ranges={tp: OffsetRange(4, 9)}, error=gap))
    claim.observers.on(MirrorTried(group=group, reason=f"reason {odd}", is_over=False))
    claim.close()
    site.store.discard(group, LetterKey(tp, 2), reason=f"because {odd}", actor=f"by {odd}")
    site.take()
    pages: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
        ("/", {}, (">g",)),
        ("/group", {}, ("<h1>g", "t")),
        ("/partition", {"topic": tp.topic, "partition": "0"}, (">g", "t")),
        ("/runs", {}, ("a gap ", "Ask ", "app ", "reason ", ">g", "t")),
        ("/letters", {"state": "all"}, (">g", ">t")),
        ("/letters", {"state": "all", "constraint": odd, "error_class": odd}, (">g", ">t")),
        ("/letter", {"topic": tp.topic, "partition": "0", "offset": "2"}, (">g", "because ", "by ")),
        ("/history", {}, (">g", "because ", "by ")),
    ]
    for path, asked, texts in pages:
        page = site.client.get(path, params={"group": group, **asked}).text
        assert not re.search(r"<script>alert|<img", page)
        assert "\u202e" not in re.sub(r'(value|data-key)="[^"]*"', "", page)
        for text in texts:
            assert text + shown in page, (path, text)
        for link in re.findall(r'href="(/(?:group|partition|runs|letters?|history)\?[^"]+)"', page):
            assert site.client.get(unescape(link)).status_code == 200, link


@pytest.mark.behaviour("DASH-1")
def test_no_part_of_an_answer_waits_for_an_acknowledgement(client: httpx.Client) -> None:
    def seconds() -> float:
        before = time.monotonic()
        client.get("/")
        return time.monotonic() - before

    # Linux delays each ACK by 40 ms, but not on a new connection. What else slows an answer down does not slow each.
    assert min([seconds() for _ in range(40)][20:]) < 0.03


STATIC = Path(__file__).parents[3] / "offsetstore" / "monitoring" / "dashboard" / "static"


def test_the_vendored_files_are_those_whose_hashes_are_written_down() -> None:
    listed = dict(
        re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", (STATIC / "uplot/README.md").read_text(), re.MULTILINE)
    )
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (STATIC / "uplot").iterdir()
        if file.name != "README.md"
    }
    assert listed == found
