"""Whether each row that transform returned is made from one Kafka record, and has that record's coordinates.

With a transaction for each Kafka partition, a row is written in the transaction of the record it came from. A row from
two partitions has no such transaction: after a crash, one partition would be replayed without the other, and a sum
would be of fewer records than before. So a transform must use the records of the batch one by one; it may use other
data freely. Names prove nothing here: Spark's expression id tells which column is the sink's ``_kafka``.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame

from offsetstore.errors import KafkaColumnsMissing, UnsupportedQuery
from offsetstore.spark.plans import analyzed, each, expression_id, is_renamed, simple_name
from offsetstore.writers.arrow.batches import KAFKA

# Each of their rows comes from one row of their input.
_ROW_BY_ROW: Final = frozenset(
    {
        "CollectMetrics",
        "Filter",
        "Generate",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "View",
    }
)
# With the batch on the left, and on the right: joins that make no row without a record of the batch.
_JOINS: Final = (
    frozenset({"INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI"}),
    frozenset({"INNER", "CROSS", "RIGHT OUTER"}),
)
PARTITION: Final = 'atomicity="partition"'
_OTHERWISE: Final = {PARTITION: 'Use atomicity="batch"'}
"""What to do for a transform of any kind; by default, leave the setting out."""


def check_row_by_row(batch: DataFrame, result: DataFrame, *, needed_by: str = PARTITION) -> None:
    """Check the plan of a transform's result. Nothing is computed.

    The plan does not show values that a transform got by an action of its own (``batch.count()``).

    :param needed_by: the sink's setting that needs it, for the error.
    :param batch: the DataFrame that transform got, with the sink's ``_kafka``.
    :raises KafkaColumnsMissing: the result has no ``_kafka``, or it is not the sink's.
    :raises UnsupportedQuery: a row may come from several records, or from none.
    """
    if KAFKA not in result.columns:
        raise _missing(f"columns {', '.join(result.columns)}", needed_by)
    made, given = analyzed(result), analyzed(batch)
    lineage = _Lineage({leaf.rdd().id() for leaf in each(given.collectLeaves())}, _kafka_column(given))
    if any(lineage.has_batch(subquery) for subquery in each(made.subqueriesAll())):
        raise _refused("a subquery over the batch", needed_by)
    try:
        columns = lineage.columns(made)
    except _NotRowByRow as reason:
        raise _refused(str(reason), needed_by) from None
    if _kafka_column(made) not in columns:
        raise _missing(f"a column {KAFKA} that transform made itself", needed_by)


def is_deterministic(result: DataFrame) -> bool:
    """Tell from the plan whether the result has the same rows each time (no ``rand()``, ``uuid()``, ...)."""
    return bool(analyzed(result).deterministic())


class _NotRowByRow(Exception):
    """A row may come from several records, or from none; the text says why."""


class _Lineage:
    """Searches down a plan for the columns that are ``_kafka`` as the sink made it.

    :param batch: the ids of the RDDs that hold the batch.
    :param kafka: the expression id of the sink's column.
    """

    def __init__(self, batch: set[int], kafka: int) -> None:
        self._batch = batch
        self._kafka = kafka

    def has_batch(self, plan: Any) -> bool:
        return any(
            simple_name(leaf) == "LogicalRDD" and leaf.rdd().id() in self._batch for leaf in each(plan.collectLeaves())
        )

    def columns(self, plan: Any) -> set[int]:
        """Return the expression ids of the plan's columns that are ``_kafka``."""
        operator = simple_name(plan)
        made = list(each(plan.projectList())) if operator == "Project" else []
        if any(expression_id(column) == self._kafka and simple_name(column) == "Alias" for column in made):
            return {self._kafka}  # the sink itself made it here
        ids = self.columns(self._below(plan, operator))
        ids |= {expression_id(column) for column in made if is_renamed(column) and expression_id(column.child()) in ids}
        return ids.intersection(expression_id(column) for column in each(plan.output()))

    def _below(self, plan: Any, operator: str) -> Any:
        """Return the plan's input that has the batch's rows."""
        if operator in _ROW_BY_ROW:
            [below] = each(plan.children())
            return below
        if operator != "Join":
            raise _NotRowByRow(operator)
        sides = (plan.left(), plan.right())
        having = [number for number, side in enumerate(sides) if self.has_batch(side)]
        if len(having) != 1:
            raise _NotRowByRow("a join of the batch with itself" if having else "a join without the batch")
        [number] = having
        kind = plan.joinType().sql()
        if kind not in _JOINS[number]:
            raise _NotRowByRow(f"a {kind} JOIN, which has rows without a record of the batch")
        return sides[number]


def _kafka_column(plan: Any) -> int:
    [kafka] = [column for column in each(plan.output()) if column.name() == KAFKA]
    return expression_id(kafka)


def _otherwise(needed_by: str) -> str:
    return _OTHERWISE.get(needed_by, f"Leave {needed_by} out")


def _missing(found: str, needed_by: str) -> KafkaColumnsMissing:
    return KafkaColumnsMissing(
        f"transform dropped `_kafka`, which {needed_by} needs to trace each row to its record",
        found=found,
        expected=f"the column {KAFKA} as transform got it",
        next_step=f'Keep it: select("{KAFKA}", ...); it is not written. '
        f"{_otherwise(needed_by)} for groupBy and the like.",
    )


def _refused(found: str, needed_by: str) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"a row may be made from several records, and {needed_by} needs to know its record",
        found=found,
        expected="each row made from one record of the batch",
        next_step=f"{_otherwise(needed_by)}, which allows any transform, or use only what Spark does row by row: "
        "select, where, explode, joins with other data.",
    )
