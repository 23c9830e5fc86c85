"""The blocks of docs/dead-letters.md and the pages beside it: what is in them happens."""

from __future__ import annotations

import shlex
from threading import Thread

import pytest
from click.testing import CliRunner

import offsetstore
from offsetstore.cli.commands import cli
from tests.integration.spark.conftest import blocks, execute_block, run_sink
from tests.support.waiting import wait_until
from tests.support.world import World

PAGE, RETRIES, REPLAY, SQL = (
    "dead-letters.md",
    "dead-letters-retries.md",
    "dead-letters-replay.md",
    "dead-letters-sql.md",
)
TABLES, LETTERS = range(2)
JOB, CODES = range(2)
STRATEGY = 0
EXECUTE = 0
DRAIN, DECIDE = range(2)
BATCH, PRINTED = range(2)
PAYMENTS = "SELECT order_id, amount::text FROM payments ORDER BY 1"


@pytest.fixture
def topic(world: World) -> str:
    for statement in blocks(PAGE, "sql")[TABLES].split(";"):
        if statement.strip():
            world.database.execute(statement)
    values = blocks(PAGE, "text")[BATCH].splitlines()
    assert len(values) == 5
    return world.topic(values)


def test_spark_reads_a_comma_in_a_text_as_the_page_warns(world: World) -> None:
    value = """from_json('{"amount": "12,50"}', 'amount decimal(12, 2)').amount"""
    parsed = world.spark.range(1).selectExpr(f"CAST({value} AS STRING)", "try_cast('12,50' AS decimal(12, 2))")
    [row] = parsed.collect()
    assert tuple(row) == ("1250.00", None)


@pytest.mark.behaviour("DLQ-12")
def test_rejects_have_codes_and_the_function_leaves_large_payments_to_a_person(world: World, topic: str) -> None:
    world.produce(topic, ['{"order_id": 1, "amount": 2000000}', '{"order_id": 2}'])
    with world.claim(topic) as claim:
        made = execute_block(PAGE, JOB, claim=claim)
        made["parse"] = execute_block(PAGE, CODES, **made)["parse_with_codes"]
        run_sink(world, execute_block(SQL, EXECUTE, **made)["booking"])

    assert world.database.rows(PAYMENTS) == [(1, "12.50"), (2, "4.00")]
    found = world.database.rows("SELECT record_offset, cause, error_class, attempts FROM dead_letters ORDER BY 1")
    assert found == [
        (1, "rejected", "no-json", 0),
        (2, "refused", "RowsRefused", 4),
        (3, "refused", "RowsRefused", 4),
        (5, "rejected", "Rejected", 0),
        (6, "rejected", "no-amount", 0),
    ]
    assert world.store.letter(world.group, offsetstore.TopicPartition(topic, 0), 6).error.text == "order 2"
    assert world.store.letter(world.group, offsetstore.TopicPartition(topic, 0), 5).error.text == "ask a person"


@pytest.mark.behaviour("DLQ-5")
def test_the_strategy_waits_for_an_order_and_skips_a_refund(world: World, topic: str) -> None:
    made = execute_block(PAGE, JOB, claim=world.claim(topic))
    patient = execute_block(RETRIES, STRATEGY)["patient"]

    def add_the_order() -> None:
        wait_until(lambda: world.database.one("SELECT count(*) FROM failures") > 0)
        world.database.execute("INSERT INTO orders VALUES (99)")

    order = Thread(target=add_the_order)
    order.start()
    world.run(world.claim(topic), made["parse"], offsetstore.Append("payments"), dead_letters=patient)
    order.join()

    assert world.database.rows(PAYMENTS) == [(1, "12.50"), (2, "4.00"), (99, "7.00")]
    assert world.database.column("SELECT record_offset FROM dead_letters") == [1]
    [skip] = world.store.history(world.group, events=["skip"])
    assert (skip.from_offset, skip.to_offset, skip.reason) == (2, 3, "a refund, ticket 21")


@pytest.mark.behaviour("DLQ-1", "DLQ-7", "DLQ-12")
def test_of_five_payments_two_are_written_and_its_commands_and_drain_put_one_back_and_give_the_others_up(
    world: World, topic: str
) -> None:
    with world.claim(topic) as claim:
        made = execute_block(PAGE, JOB, claim=claim)
        run_sink(world, made["sink"])

    assert world.database.rows(PAYMENTS) == [(1, "12.50"), (2, "4.00")]
    assert world.stored(topic) == {0: 5}
    printed = blocks(PAGE, "text")[PRINTED]
    names, *rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "-+-" not in line]
    letters = world.database.rows(blocks(PAGE, "sql")[LETTERS].replace("'billing'", f"'{world.group}'"))
    assert [[str(cell).strip() for cell in row] for row in letters] == rows
    assert names == ["record", "cause", "error", "attempts", "value"]
    assert world.database.one("SELECT count(*) FROM failures") == 0

    world.database.execute("INSERT INTO orders VALUES (99)")
    lists, show, replay, discard, prune = commands(world, topic)
    assert "payments_order_id_fkey" in call(world, lists)
    assert '{"order_id": 99, "amount": 7}' in call(world, show)
    call(world, replay)
    of_group = {'"billing"': repr(world.group)}
    given = {"spark": world.spark, "store": world.store, "broker": world.broker(topic), "parse": made["parse"]}
    assert execute_block(REPLAY, DRAIN, of_group, **given)["replayed"] == 1

    assert world.database.rows(PAYMENTS) == [(1, "12.50"), (2, "4.00"), (99, "7.00")]
    call(world, discard)
    execute_block(REPLAY, DECIDE, of_group, store=world.store)
    call(world, prune)
    states = "SELECT record_offset, state, payload FROM dead_letters ORDER BY 1"
    assert world.database.rows(states) == [
        (1, "discarded", "erased"),
        (2, "discarded", "kept"),
        (3, "replayed", "kept"),
    ]


def commands(world: World, topic: str) -> list[list[str]]:
    """The commands of the page on replays, for the test's group and topic."""
    lines = [line for block in blocks(REPLAY, "console") for line in block.splitlines()]
    assert all(line.startswith("$ offsetstore dead-letters ") for line in lines)
    names = {"billing": world.group, "payments:0:3": f"{topic}:0:3"}
    return [[names.get(word, word) for word in shlex.split(line)[2:]] for line in lines]


def call(world: World, command: list[str]) -> str:
    done = CliRunner(env={"OFFSETSTORE_URL": world.database.url}).invoke(cli, command)
    assert done.exit_code == 0, done.output
    return done.output
