"""The blocks of docs/handlers.md and handlers-clients.md: they call a real service, over HTTP."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from offsetstore import Append, Handler, Record, TransactionalSink
from tests.integration.spark.conftest import Service, blocks, execute_block, run_sink
from tests.support.world import World

PAGE, CLIENTS = "handlers.md", "handlers-clients.md"
EXAMPLE, DEFAULTS, SEVERAL = range(3)
MODULE, ASYNC = range(2)
SCORES = "CREATE TABLE scores (id bigint, score double precision)"


@pytest.mark.behaviour("DLQ-6", "HAND-2", "HAND-5")
def test_scores_are_fetched_with_each_records_id_a_refused_record_is_a_letter_and_an_outage_is_no_records(
    world: World, service: Service
) -> None:
    world.database.execute(SCORES)
    topic = world.topic(["0.5", "bad", "0.25"])

    def sink() -> TransactionalSink:
        replaced = {"scores.example.org": service.address}
        return execute_block(PAGE, EXAMPLE, replaced, claim=world.claim(topic))["sink"]

    run_sink(world, sink())

    assert world.database.rows("SELECT id, score FROM scores ORDER BY id") == [(0, 0.5), (2, 0.25)]
    letters = "SELECT record_offset, cause, error_class, error_text, attempts FROM dead_letters"
    assert world.database.rows(letters) == [(1, "raised", "ValueError", "the service answers 422", 3)]

    world.produce(topic, ["down"])
    down = sink()
    query = world.start(down, world.read(down.claim), checkpoint=down.claim.checkpoint(world.checkpoints))
    assert "Outage" in str(world.failure(query, down).error)
    assert world.database.column("SELECT record_offset FROM dead_letters") == [1]
    assert world.stored(topic) == {0: 3}
    [topic_id] = world.database.column("SELECT DISTINCT topic_id FROM kafka_partitions")
    assert service.keys == {f"{topic}/{topic_id}/0/{offset}": (1, 3, 1, 3)[offset] for offset in range(4)}


def test_the_settings_that_it_lists_are_the_defaults() -> None:
    def fetch_score(_: Record) -> None: ...

    named = execute_block(PAGE, DEFAULTS, fetch_score=fetch_score)["calls"]
    assert named == Handler(fetch_score, "id long, score double")


@pytest.mark.behaviour("HAND-3", "HAND-9")
def test_orders_and_their_lines_are_two_outputs(world: World) -> None:
    world.database.execute("CREATE TABLE orders (id bigint)")
    world.database.execute("CREATE TABLE order_lines (id bigint, number int, article text)")
    topic = world.topic(['{"id": 7, "articles": ["tea", "cup"]}', '{"id": 8, "articles": []}'])

    run_sink(world, execute_block(PAGE, SEVERAL, json=json, claim=world.claim(topic))["several"])

    assert world.database.column("SELECT id FROM orders ORDER BY id") == [7, 8]
    lines = "SELECT id, number, article FROM order_lines ORDER BY number"
    assert world.database.rows(lines) == [(7, 1, "tea"), (7, 2, "cup")]


@pytest.mark.behaviour("HAND-3", "HAND-7")
def test_a_module_has_one_client_for_all_tasks_of_a_process_and_for_asyncio_one_for_each_loop(
    world: World, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.execute(SCORES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names = {MODULE: f"scores_{uuid4().hex}", ASYNC: f"scores_{uuid4().hex}"}
    for number, name in names.items():
        file = tmp_path / f"{name}.py"
        block = blocks(CLIENTS)[number].replace("SCORES", repr(f"http://{service.address}"))
        file.write_text(block.replace("from scores import", f"from {names[MODULE]} import"), encoding="utf-8")
        world.spark.sparkContext.addPyFile(str(file))
    topic = world.topic([str(number) for number in range(3)])
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
        fetch = noted if name == names[MODULE] else import_module(name).fetch_score
        claim = world.claim(topic, group=f"{world.group}-{name}")
        sink = TransactionalSink(claim, Handler(fetch, "id long, score double"), into=Append("scores"))
        run_sink(world, sink, maxOffsetsPerTrigger="1")

    clients = [line.split() for line in log.read_text().splitlines()]
    assert len(clients) == 3  # of as many micro-batches
    assert len({client for _, client in clients}) == len({process for process, _ in clients})
    assert world.database.column("SELECT id FROM scores ORDER BY id") == [n for n in range(3) for _ in range(2)]
    assert set(service.keys.values()) == {2}
