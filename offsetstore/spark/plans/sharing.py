"""Compute once what several outputs of one batch share, so that they agree on it.

Spark computes each output in a job of its own, and for each one computes again what it comes from: with another uuid
from a Python function, another clock, another choice of a LIMIT. So before the first job, the largest parts that more
than one output's plan contains are persisted; from then on they must not be computed again, nor exist twice
(docs/decisions/0027-outputs-that-agree.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from offsetstore.processing.unit import PlanOutdated
from offsetstore.spark.function_errors import has_lost_block
from offsetstore.spark.plans import analyzed, each, execution, simple_name

# With deterministic expressions, these give the same rows whenever they are computed from the same rows.
_PLAIN: Final = frozenset({"Filter", "LogicalRDD", "Project", "ResolvedHint", "SubqueryAlias", "View"})
_LOST: Final = "executors have lost a part of what the outputs share, or computed it twice"


@contextmanager
def computed_once(
    batch: DataFrame, level: StorageLevel
) -> Generator[Callable[[Mapping[str, DataFrame]], dict[str, DataFrame]]]:
    """Yield a function that takes a batch's outputs, and returns outputs that agree; compute these in the block.

    :param level: where to keep what they share. It must not evict.
    :raises PlanOutdated: a shared part was lost, or computed twice: the outputs may differ.
    """
    sharing = _Sharing(batch, level)
    try:
        try:
            yield sharing.share
        except Exception as error:
            if not has_lost_block(error):
                raise
            raise PlanOutdated(_LOST) from error
        if not sharing.is_intact():
            raise PlanOutdated(_LOST)
    finally:
        sharing.end()


class _Sharing:
    """The persisted parts of one batch. The batch itself is persisted first, for the transform's own actions."""

    def __init__(self, batch: DataFrame, level: StorageLevel) -> None:
        self._batch = batch
        self._level = level
        self._rdds: list[Any] = []
        self._cut: list[Any] = []
        self._blocks: list[str] = []
        self._patterns = _jvm(batch).org.apache.spark.sql.catalyst.trees.TreePattern
        self._persisted = [batch.persist(level)]

    def share(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Compute what the frames share, and return frames that read it."""
        plans = self._with_one_clock([analyzed(frame) for frame in frames.values()])
        batch = analyzed(self._batch)
        shared = _Shared(self._patterns, batch, plans)
        rows = self._cached(batch)
        # Not beside parts that all outputs read instead, unless the transform's own action has read it (decision 0027).
        if not shared.needs_batch and rows is not None and not rows.isCachedColumnBuffersLoaded():
            self._persisted.remove(self._batch)
            self._batch.unpersist()
        if shared.needs_batch:
            self._materialize(batch, is_ours=True)
        for plan in shared.plans:
            self._materialize(plan)
        self._blocks = self._shared_blocks()
        # A DataFrame already planned, for an action of the transform, would not read what is persisted now.
        return {name: _frame(frame, plan) for (name, frame), plan in zip(frames.items(), plans, strict=True)}

    def is_intact(self) -> bool:
        """Whether each block is only where it was first; a speculative copy of a task would have computed others."""
        blocks = self._shared_blocks()
        names = {block.partition(" ")[0] for block in blocks}
        return blocks == self._blocks and len(names) == len(blocks) == sum(rdd.getNumPartitions() for rdd in self._rdds)

    def end(self) -> None:
        """Unpersist all parts, those made from other parts first."""
        # Else Spark warns that these can't be computed again, which nobody wants.
        for rdd in self._cut:
            getattr(rdd, "checkpointData_$eq")(_jvm(self._batch).scala.Option.empty())
        for frame in reversed(self._persisted):
            frame.unpersist()

    def _with_one_clock(self, plans: list[Any]) -> list[Any]:
        """Fix ``current_timestamp()`` and the like as Spark does for one query, but once for all plans."""
        if not any(plan.containsPattern(self._patterns.CURRENT_LIKE()) for plan in plans):
            return plans
        jvm = _jvm(self._batch)
        together = jvm.org.apache.spark.sql.catalyst.plans.logical.Union(jvm.PythonUtils.toSeq(plans), False, False)  # noqa: FBT003 - Java
        return list(each(jvm.org.apache.spark.sql.catalyst.optimizer.ComputeCurrentTime.apply(together).children()))

    def _materialize(self, plan: Any, *, is_ours: bool = False) -> None:
        rows = self._cached(plan)
        if rows is None:
            self._persisted.append(_frame(self._batch, plan).persist(self._level))
            rows, is_ours = self._cached(plan), True
        rdd = rows.cachedColumnBuffers()
        # What the user has persisted may outlive the batch, and keeps its lineage (decision 0027).
        if is_ours:
            self._cut.append(rdd)
            rdd.localCheckpoint()  # a lost block is then an error, and is not computed again
        rdd.count()
        self._rdds.append(rdd)

    def _cached(self, plan: Any) -> Any:
        """Return the builder of the plan's persisted rows, or ``None`` if they are not persisted."""
        cached = execution(_frame(self._batch, plan)).withCachedData()
        return cached.cacheBuilder() if simple_name(cached) == "InMemoryRelation" else None

    def _shared_blocks(self) -> list[str]:
        """Return each block of the shared parts, with the executor that has it."""
        ours = tuple(f"rdd_{rdd.id()}_" for rdd in self._rdds)
        master = _jvm(self._batch).org.apache.spark.SparkEnv.get().blockManager().master()
        return sorted(
            f"{block} {status.blockManagerId().executorId()}"
            for status in master.getStorageStatus()
            for block in status.rddBlocks().keySet().mkString(" ").split()
            if block.startswith(ours)
        )


@dataclass(eq=False, slots=True)
class _Node:
    """A part of one or several plans; ``nested`` are the subqueries of its own expressions."""

    plan: Any
    below: list[_Node] = field(default_factory=list["_Node"])
    nested: list[_Node] = field(default_factory=list["_Node"])

    def all(self) -> set[_Node]:
        """The node itself and everything below."""
        nodes: set[_Node] = set()
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node not in nodes:
                nodes.add(node)
                waiting += node.below + node.nested
        return nodes


class _Shared:
    """The parts that more than one plan contains.

    ``plans``: the largest parts that might differ if they were computed twice; those contained in others come first.
    ``needs_batch``: some outputs read the batch outside these parts.
    """

    def __init__(self, patterns: Any, batch: Any, plans: list[Any]) -> None:
        self._cte, self._outer, self._subquery = patterns.CTE(), patterns.OUTER_REFERENCE(), patterns.PLAN_EXPRESSION()
        self._functions = (patterns.PYTHON_UDF(), patterns.SCALA_UDF())
        self._batch = _Node(batch)
        self._nodes = {batch.semanticHash(): [self._batch]}
        roots = [self._node(plan) for plan in plans]
        contents = [root.all() for root in roots]
        shared: set[_Node] = set()
        self.needs_batch = False
        for root in roots:
            self._search(root, contents, shared)
        self.plans = [node.plan for node in sorted(shared, key=lambda node: len(node.all()))]

    def _node(self, plan: Any) -> _Node:
        """Return the one node for all plans that give the same result. The batch's is a leaf."""
        same = self._nodes.setdefault(plan.semanticHash(), [])
        if (known := _known(same, plan)) is not None:
            return known
        children = plan.children()
        below = [self._node(children.apply(number)) for number in range(children.size())]
        nested = (
            [self._node(query) for query in each(plan.subqueries())] if plan.containsPattern(self._subquery) else []
        )
        if (known := _known(same, plan)) is not None:  # a projection that changes nothing gives what is below it
            return known
        same.append(_Node(plan, below, nested))
        return same[-1]

    def _search(self, root: _Node, contents: list[set[_Node]], shared: set[_Node]) -> None:
        """Go down from an output to the parts that others contain too, and add these to ``shared``."""
        waiting = [(root, False)]
        seen: set[tuple[_Node, bool]] = set()
        while waiting:
            place = node, is_inner = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if node is self._batch:
                self.needs_batch = True
            elif sum(node in content for content in contents) > 1 and self._is_whole(*place) and self._may_differ(node):
                shared.add(node)
            elif _is_rdd(node):  # only Spark knows whether it was made from the batch
                self.needs_batch = True
            else:
                is_inner = is_inner or simple_name(node.plan) == "WithCTE"
                waiting += [(below, is_inner) for below in node.below] + [(below, True) for below in node.nested]

    def _is_whole(self, node: _Node, is_inner: bool) -> bool:  # noqa: FBT001 - a place, see _search
        """Whether a part of a subquery, or of a WITH, can be computed on its own."""
        return not is_inner or not any(node.plan.containsPattern(pattern) for pattern in (self._outer, self._cte))

    def _may_differ(self, node: _Node) -> bool:
        """Whether the part might differ the second time."""
        plan = node.plan
        # A function counts as deterministic unless its author says otherwise, so any that is not Spark's own might.
        if not plan.deterministic() or any(plan.containsPattern(function) for function in self._functions):
            return True
        content = node.all()
        if not any(part is self._batch or _is_rdd(part) for part in content):
            return False  # other data: each output reads it separately
        return _is_rdd(node) or any(simple_name(part.plan) not in _PLAIN for part in content if part is not self._batch)


def _known(nodes: list[_Node], plan: Any) -> _Node | None:
    return next((node for node in nodes if node.plan.sameResult(plan)), None)


def _is_rdd(node: _Node) -> bool:
    return not node.below and simple_name(node.plan) == "LogicalRDD"


def _frame(like: DataFrame, plan: Any) -> DataFrame:
    """Make a DataFrame of a plan, in the session of another one."""
    session = like.sparkSession
    of_rows = _jvm(like).org.apache.spark.sql.classic.Dataset.ofRows
    made = of_rows(_any(session)._jsparkSession, plan)  # noqa: SLF001
    return _any(type(like))(made, session)


def _jvm(frame: DataFrame) -> Any:
    return _any(frame.sparkSession)._jvm  # noqa: SLF001 - py4j's gateway


def _any(value: Any) -> Any:
    return value
