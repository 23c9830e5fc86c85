"""The blocks of docs/handlers.md: what is in them calls a real service, over HTTP."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import offsetstore
from offsetstore import Append, Handler, Record, TransactionalSink
from tests.integration.spark.conftest import Service
from tests.support.world import SECONDS, World

PAGE = Path(__file__).parents[3] / "docs" / "handlers.md"
EXAMPLE, SEVERAL, MODULE, ASYNC = range(4)
SCORES = "id long, score double"


def blocks() -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(found) == 4
    return found


def run(number: int, address: str = "", **names: Any) -> dict[str, Any]:
    """Execute a block as in a job's own file; return its names."""
    public = {name: getattr(offsetstore, name) for name in offsetstore.__all__}
    names = {**public, "json": json, "__name__": "__main__", **names}
    block = blocks()[number].replace("scores.example.org", address)
    exec(compile(block, "docs/handlers.md", "exec"), names)  # noqa: S102 - the page's own words
    return names


def ended(world: World, topic: str, sink: TransactionalSink, **options: str) -> None:
    stream = world.read(sink.claim, **options)
    query = world.start(sink, stream, checkpoint=sink.claim.checkpoint(world.checkpoints))
    assert query.awaitTermination(SECONDS)


@pytest.mark.behaviour("HAND-2", "HAND-5")
def test_scores_are_fetched_with_each_records_id_and_a_refused_record_is_a_letter(
    world: World, service: Service
) -> None:
    world.database.execute("CREATE TABLE scores (id bigint, score double precision)")
    topic = world.topic(["0.5", "bad", "0.25"])
    claim = world.claim(topic)

    ended(world, topic, run(EXAMPLE, service.address, claim=claim)["sink"])

    assert world.database.rows("SELECT id, score FROM scores ORDER BY id") == [(0, 0.5), (2, 0.25)]
    letters = "SELECT record_offset, cause, error_class, error_text, attempts FROM dead_letters"
    assert world.database.rows(letters) == [(1, "raised", "ValueError", "the service answers 422", 3)]
    [topic_id] = world.database.column("SELECT DISTINCT topic_id FROM kafka_partitions")
    assert service.keys == {f"{topic}/{topic_id}/0/{offset}": (1, 3, 1)[offset] for offset in range(3)}


@pytest.mark.behaviour("HAND-2")
def test_while_the_service_is_down_the_query_ends_and_no_record_is_to_blame(world: World, service: Service) -> None:
    world.database.execute("CREATE TABLE scores (id bigint, score double precision)")
    topic = world.topic(["0.5", "down"])
    claim = world.claim(topic)
    sink = run(EXAMPLE, service.address, claim=claim)["sink"]

    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))

    assert "Outage" in str(world.failure(query, sink).error)
    assert world.database.one("SELECT count(*) FROM dead_letters") == 0
    assert world.stored(topic) == {0: 0}
    assert sorted(service.keys.values()) == [1, 3]


@pytest.mark.behaviour("HAND-3")
def test_orders_and_their_lines_are_two_outputs(world: World) -> None:
    world.database.execute("CREATE TABLE orders (id bigint)")
    world.database.execute("CREATE TABLE order_lines (id bigint, number int, article text)")
    topic = world.topic(['{"id": 7, "articles": ["tea", "cup"]}', '{"id": 8, "articles": []}'])

    ended(world, topic, run(SEVERAL, claim=world.claim(topic))["several"])

    assert world.database.column("SELECT id FROM orders ORDER BY id") == [7, 8]
    lines = "SELECT id, number, article FROM order_lines ORDER BY number"
    assert world.database.rows(lines) == [(7, 1, "tea"), (7, 2, "cup")]


@pytest.mark.behaviour("HAND-3", "HAND-7")
def test_a_module_has_one_client_for_all_tasks_of_a_process_and_for_asyncio_one_for_each_loop(
    world: World, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.execute("CREATE TABLE scores (id bigint, score double precision)")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names = {MODULE: f"scores_{uuid4().hex}", ASYNC: f"scores_{uuid4().hex}"}
    for number, name in names.items():
        file = tmp_path / f"{name}.py"
        block = blocks()[number].replace("SCORES", repr(f"http://{service.address}"))
        file.write_text(block.replace("from scores import", f"from {names[MODULE]} import"), encoding="utf-8")
        world.spark.sparkContext.addPyFile(str(file))
    topic = world.topic([str(number) for number in range(5)])
    log = tmp_path / "clients"
    of_module: Any = import_module(names[MODULE]).fetch_score

    def noted(record: Record) -> Any:
        """Calls the module's function, and notes the process and its client: that may connect again and again."""
        client = of_module.__globals__["client"]()
        number = client.__dict__.setdefault("noted_as", uuid4().hex)
        with log.open("a") as file:
            file.write(f"{os.getpid()} {number}\n")
        return of_module(record)

    for name in names.values():
        calls = Handler(noted if name == names[MODULE] else import_module(name).fetch_score, SCORES)
        claim = world.claim(topic, group=f"{world.group}-{name}")
        ended(world, topic, TransactionalSink(claim, calls, into=Append("scores")), maxOffsetsPerTrigger="1")

    clients = [line.split() for line in log.read_text().splitlines()]
    assert len(clients) == 5  # of five micro-batches
    assert len({client for _, client in clients}) == len({process for process, _ in clients})
    assert world.database.column("SELECT id FROM scores ORDER BY id") == [n for n in range(5) for _ in range(2)]
    assert set(service.keys.values()) == {2}
