"""The job that many run today, and the same job made exactly-once."""

from __future__ import annotations

import ast
from difflib import ndiff
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

from tests.support.background import in_background
from tests.support.examples import EXAMPLES, Examples
from tests.support.postgres import Database
from tests.support.waiting import wait_until

PAYMENTS = "SELECT payer, amount::text FROM payments ORDER BY payer, amount"
TABLE = "CREATE TABLE payments (payer text, amount numeric(12,2))"


def statements(name: str) -> list[str]:
    """The job's statements without its docstring, each as it stands there; those of a with block one by one."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    body = ast.parse(text).body[1:]
    parts = [part for node in body for part in (node.body if isinstance(node, ast.With) else [node])]
    return [dedent(ast.get_source_segment(text, part, padded=True) or "") for part in parts]


def test_three_lines_of_the_query_differ_and_a_claim_and_a_sink_stand_where_the_writing_function_was() -> None:
    existing, exactly_once = statements("existing_job.py"), statements("exactly_once_job.py")
    [write, query, wait] = [one for one in existing if one not in exactly_once]
    [package, imports, claim, sink, new_query, run] = [one for one in exactly_once if one not in existing]

    assert package == "import offsetstore.spark"
    assert imports.startswith("from offsetstore import ")
    assert write.startswith("def write(")
    assert claim.startswith("claim = ")
    assert sink.startswith("sink = ")
    assert "\n" not in claim + sink
    assert (wait, run) == ("query.awaitTermination()", "job.run(query, sink)")
    difference = list(ndiff(query.splitlines(), new_query.splitlines()))
    print("\n".join(difference))  # noqa: T201 - `pytest -rP` shows it
    assert [line.strip() for line in difference if line.startswith("- ")] == [
        '-     .option("startingOffsets", "earliest")',
        "-     .writeStream.foreachBatch(write)",
        '-     .option("checkpointLocation", f"{CHECKPOINTS}/payments")',
    ]
    assert [line.rpartition("  # ")[2] for line in difference if line.startswith("+ ")] == ["1", "2", "3"]


def test_the_existing_job_writes_a_batch_twice_if_it_died_before_the_checkpoints_commit(
    examples: Examples, database: Database, offsetstore_spark: SparkSession
) -> None:
    database.execute(TABLE)
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))
    commit = examples.checkpoints / "payments" / "commits" / "0"
    for times in (1, 2):
        ended = in_background(lambda: examples.run_here("existing_job.py"))
        wait_until(lambda: ended.done() or commit.exists(), timeout=60)  # noqa: B023 - called at once
        for query in offsetstore_spark.streams.active:
            query.stop()
        ended.result(timeout=60)
        assert database.rows(PAYMENTS) == [("ada", "1.50")] * times + [("bob", "2.25")] * times
        for file in commit.parent.iterdir():  # what a crash just before would have left
            file.unlink()


@pytest.mark.behaviour("SINK-1")
@pytest.mark.usefixtures("offsetstore_spark")
def test_the_exactly_once_job_that_failed_there_writes_it_once(examples: Examples, database: Database) -> None:
    database.execute(TABLE)
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))
    with pytest.raises(SystemExit, match=r"^70$"):
        examples.with_environment(OFFSETSTORE_FAILPOINT="after_sink:raise").run_here("exactly_once_job.py")
    assert database.one("SELECT count(*) FROM payments") == 2
    assert not list(examples.checkpoints.glob("billing/*/commits/0"))

    examples.produce("payments", ("cleo", "3.00"))
    examples.stop_here("exactly_once_job.py", lambda: database.one("SELECT count(*) FROM payments") == 3)

    assert database.rows(PAYMENTS) == [("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00")]
