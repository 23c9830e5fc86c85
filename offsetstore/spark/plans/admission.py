"""Whether a streaming query can be written exactly once; checked once per run, before anything is written.

The sink crops a replayed batch by the records' coordinates, so each row must be of this batch, and carry the
coordinates that Kafka gave it. Operators that are refused here belong in the sink's transform, where they do no harm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from offsetstore.errors import KafkaColumnsMissing, MissingDependency, UnsupportedQuery
from offsetstore.protocol.starting import check_reader
from offsetstore.spark.plans import each, expression_id, is_renamed, simple_name

_SOURCE = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"
_RELATION = "StreamingRelationV2"

# Allowed between load() and writeStream: they keep no records for a later batch, and make no row from several
# (decision 0011).
_ROW_BY_ROW = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
        "Union",
        _RELATION,
    }
)

COORDINATES = ("topic", "partition", "offset", "timestamp")
"""The columns of the Kafka source that the sink needs."""

# It makes several rows of one.
_SPLITTING = frozenset({"Generate"})

# They pass on rows of this batch only; their state tells which.
_PASSING = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})

_STATEFUL = _PASSING | {
    "Aggregate",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "Join",
    "TransformWithState",
    "TransformWithStateInPySpark",
}

_TRANSFORM = "Do it in the sink's transform, which may name its columns freely."
_KEEP = (
    "Do it in the sink's transform if it concerns one batch. If it spans batches, keep its state: use "
    'claim.checkpoint(base, keep=True) as "checkpointLocation".'
)


def admit_stateful(execution: Any, columns: Collection[str]) -> bool:
    """Check the sources of a query whose checkpoint is kept; it may use any operator before the sink.

    :return: whether each row has the coordinates that Kafka gave it.
    :raises UnsupportedQuery: the query has other sources than Kafka, or may skip records.
    """
    _check_sources(execution)
    try:
        _check_coordinates(execution, columns, _ROW_BY_ROW | _PASSING)
    except (KafkaColumnsMissing, UnsupportedQuery):
        return False
    return True


def admit(execution: Any, columns: Collection[str], *, whole_records: bool = False) -> None:
    """Check a query's sources and its plan.

    :param columns: the names in the batch's DataFrame.
    :param whole_records: whether each row must be a record, with all of its columns as Kafka gave them.
    :raises UnsupportedQuery: the query has other sources than Kafka, or may skip or change records.
    :raises KafkaColumnsMissing: the DataFrame has lost a coordinate.
    """
    _check_sources(execution)
    if whole_records:
        _check_coordinates(execution, columns, _ROW_BY_ROW - _SPLITTING, columns)
    else:
        _check_coordinates(execution, columns, _ROW_BY_ROW)


def _check_coordinates(
    execution: Any, columns: Collection[str], allowed: Collection[str], kept: Collection[str] = COORDINATES
) -> None:
    missing = [name for name in COORDINATES if name not in columns]
    plan = execution.analyzedPlan()
    if missing:
        _origins(plan, allowed)  # a refused operator tells more than the columns that it removed
        raise KafkaColumnsMissing(
            "the streaming DataFrame has lost Kafka's columns",
            found=f"columns {', '.join(columns)}",
            expected=f"also {', '.join(missing)}",
            next_step="Call writeStream on what load() returned, and do the rest in the sink's transform.",
        )
    origins = _origins(plan, allowed)
    for attribute in each(plan.output()):
        name = attribute.name()
        if name in kept and origins.get(expression_id(attribute)) != name:
            raise UnsupportedQuery(
                f"Kafka's column {name} was replaced in the streaming DataFrame",
                expected=f"{name} as load() returned it",
                next_step=_TRANSFORM,
            )


def _check_sources(execution: Any) -> None:
    for source in each(execution.sources()):
        name = source.getClass().getName()
        if name != _SOURCE:
            raise UnsupportedQuery(
                "the query reads from a source other than Kafka",
                found=name,
                expected="only Kafka sources",
                next_step="Join other data inside transform, as a static DataFrame.",
            )
    for leaf in each(execution.analyzedPlan().collectLeaves()):
        if simple_name(leaf) == _RELATION:
            # Spark prefers some options to `startingOffsets`, and ignores others in a stream (decision 0052).
            options = leaf.extraOptions()
            check_reader(options.get)


def _origins(plan: Any, allowed: Collection[str]) -> dict[int, str]:
    """Map the plan's columns, by Spark's expression id, to the source's columns that they hold as Kafka gave them.

    Names prove nothing: an alias, an exploded column or another column of a union can have any.
    """
    operator = simple_name(plan)
    if operator not in allowed:
        next_step = _KEEP if operator in _STATEFUL else _TRANSFORM
        raise UnsupportedQuery(
            f"the streaming DataFrame was changed before writeStream, by {operator}",
            expected="what load() returned",
            next_step=next_step,
        )
    if operator == _RELATION:
        return {expression_id(column): column.name() for column in each(plan.output())}
    children = list(each(plan.children()))
    if operator == "Union":
        # It matches columns by position: one is the source's if it is the same one in every child.
        of_children = [(child, _origins(child, allowed)) for child in children]
        outputs = [[of.get(expression_id(column)) for column in each(child.output())] for child, of in of_children]
        columns = zip(each(plan.output()), *outputs, strict=True)
        return {
            expression_id(column): first for column, first, *others in columns if first and {first}.issuperset(others)
        }
    [child] = children
    origins = _origins(child, allowed)
    if operator == "Project":
        for column in each(plan.projectList()):
            if is_renamed(column) and (origin := origins.get(expression_id(column.child()))) is not None:
                origins[expression_id(column)] = origin
    return origins


def check_connector(spark: SparkSession) -> None:
    """Look for the connector, as Spark itself does.

    :raises MissingDependency: there is none, or it is made for another minor version of Spark.
    """
    session: Any = spark
    jvm, version = session._jvm, str(spark.version)  # noqa: SLF001 - py4j's gateway
    try:
        conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001
        source = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource("kafka", conf)
        package = source.getPackage()
        # Known by its own jar: the version of an application's jar with all it needs is another (decision 0060).
        connector = package.getImplementationVersion() if "Kafka" in str(package.getImplementationTitle()) else None
        scala = _minor(str(jvm.scala.util.Properties.versionNumberString()))
    except (PySparkException, Py4JJavaError):
        raise _missing(None, version) from None
    except (Py4JError, TypeError):  # Java has ended, or Spark looks in another way
        return
    if connector is not None and _minor(str(connector)) != _minor(version):
        raise _missing(str(connector), version, scala)


def _missing(connector: str | None, version: str, scala: str = "2.13") -> MissingDependency:
    # A connector fits every patch of its minor version. Not every patch has one, but the first does.
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{_minor(version)}.0"
    return MissingDependency(
        "Spark has no Kafka connector" if connector is None else "Spark's Kafka connector is made for another Spark",
        found=connector,
        expected=f"one for Spark {_minor(version)}",
        next_step=f"spark-submit --packages {package} job.py, or a later {_minor(version)} where one is published.",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
