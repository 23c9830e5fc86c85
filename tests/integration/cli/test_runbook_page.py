"""docs/runbook.md: its commands and its SQL run as they stand there, in order, for a group with a live job."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import psycopg
import pytest

from offsetstore import OffsetStore
from offsetstore.local.kafka import KafkaBroker
from tests.integration.cli.conftest import DOCS, Here, blocks
from tests.integration.conftest import Query
from tests.support.kafka_tools import install_kafka_tools

PAGE = (DOCS / "runbook.md").read_text(encoding="utf-8")

OUTBOX = """
INSERT INTO outbox_relays (shard, token, owner) VALUES (0, gen_random_uuid(), 'relay-1');
INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error)
SELECT id, '{group}', topic, now(), 'Kafka refuses it'
FROM (VALUES (16, 'payment-events'), (17, 'tests')) AS rows (id, topic);
INSERT INTO outbox (id, consumer_group, topic) OVERRIDING SYSTEM VALUE VALUES (19, '{group}', 'small')
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with Kafka's own tools, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    install_kafka_tools(tmp_path)
    return tmp_path


@pytest.mark.behaviour("OPS-13")
def test_what_the_page_says_to_type_runs(  # noqa: PLR0917
    here: Here, billing: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker, tools: Path, query: Query
) -> None:
    names = {"billing": billing, "localhost:9092": offsetstore_kafka.bootstrap_servers}
    printed: dict[str, str] = {}
    with OffsetStore.connect(offsetstore_database) as store:
        store.pause(billing, reason="a night's load")
        [names["payments"]] = {tp.topic for tp in store.offsets(billing)}
    query(OUTBOX.format(group=billing))
    for language, text in blocks("runbook.md", "console", "sql"):
        if language == "sql":
            with psycopg.connect(offsetstore_database) as connection:
                assert connection.execute(text.replace("'billing'", f"'{billing}'").encode()).fetchall()
            continue
        for line in text.splitlines():
            prompt, program, *words = shlex.split(line, comments=True)
            arguments = [names.get(word, word) for word in words]
            assert prompt == "$"
            if program == "offsetstore":
                printed[line] = here(*arguments)
                continue
            done = subprocess.run(
                [tools / program, *arguments], capture_output=True, text=True, check=False, timeout=120
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            printed[line] = done.stdout

    [in_text] = re.findall(r"`(outbox set-aside [^`]*)`", PAGE)
    assert "--execute" not in in_text
    here(*(names.get(word, word) for word in shlex.split(in_text.replace("shop", "billing"))))
    assert (tools / "rules" / "offsetstore.rules.yml").exists()
    assert "a night's load" in printed["$ offsetstore history -g billing --event pause --event resume -n 5"]
    assert "Completed updating config" in next(text for line, text in printed.items() if " --alter " in line)
    with OffsetStore.connect(offsetstore_database) as store:
        assert {one.group: one.owner.pause for one in store.groups()}[billing] is None
    assert query("SELECT topic FROM outbox") == [("payment-events",)]
    assert query("SELECT id FROM outbox_refused") == [(19,)]


@pytest.mark.behaviour("OPS-13")
def test_each_alert_has_a_section_in_the_same_order_and_its_links_lead_somewhere() -> None:
    rules = (DOCS.parent / "offsetstore" / "assets" / "prometheus" / "offsetstore.rules.yml").read_text("utf-8")
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == re.findall(r"^ *- alert: (\w+)$", rules, re.MULTILINE)
    links = re.findall(r"\]\(([\w/.-]*)(?:#([\w-]+))?\)", PAGE)
    assert len(links) > 15
    for file, anchor in links:
        target = (DOCS / file).read_text(encoding="utf-8") if file else PAGE
        titles = re.findall(r"^#+ (.*)$", target, re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in titles}
