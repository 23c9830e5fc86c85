"""What a source hands over, and what is asked of it: Spark's micro-batch is one, in `offsetstore.spark`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, Self, TypeAlias

from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.processing.unit import Coordinates, Ranges, Rows
from offsetstore.protocol.letters import Cause, Headers, Letter, LetterError, Payload
from offsetstore.store.term import Terms


class CountedRows(Rows, Protocol):
    """One output's rows of some records."""

    @property
    def rows(self) -> int:
        """Their number."""
        ...


class KeptRows(CountedRows, Protocol):
    """Rows that can wait in memory."""

    @property
    def bytes(self) -> int:
        """Their size."""
        ...

    def joined(self, later: Sequence[Self], /) -> CountedRows:
        """The same output's rows of several deliveries, in order, as one."""
        ...


class Rejected(NamedTuple):
    """Why a record has no rows, which is not for the database to say: the job's own code has rejected it.

    :param cause: ``"rejected"``, or ``"raised"`` by a handler, which has tried it ``attempts`` times.
    :param shown: see `offsetstore.processing.handling.HandlerError`.
    """

    error: LetterError
    cause: Cause = "rejected"
    attempts: int = 0
    shown: str = ""


class CarefulPart(Protocol):
    """Records whose rows are computed, each with its record known. They are numbered from 0, in order."""

    @property
    def numbers(self) -> Sequence[int]:
        """The records that exist, ascending."""
        ...

    @property
    def with_rows(self) -> Sequence[int]:
        """Those that make any rows, and are not rejected: a reject may not have reached what fails for others."""
        ...

    @property
    def accepted(self) -> Sequence[int]:
        """Those that show that not all records are bad: with rows; or those for which a handler has not failed."""
        ...

    @property
    def is_handled(self) -> bool:
        """Whether a handler was called for each record."""
        ...

    @property
    def keys(self) -> Mapping[int, Hashable]:
        """What records of one key have in common."""
        ...

    @property
    def rejected(self) -> Mapping[int, Rejected]:
        """The records that transform rejects, or that a handler has failed for."""
        ...

    @property
    def failed(self) -> Mapping[int, FunctionFailed]:
        """The records that can't be computed: all others could, after them. They have no rows here."""
        ...

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored ones that are taken to be earlier."""
        ...

    def fail_again(self, numbers: Sequence[int]) -> Mapping[int, FunctionFailed]:
        """Compute some of those that have failed once more; return those that fail again.

        :raises FunctionFailed: so does a record that could be computed before: no record is to blame.
        """
        ...

    def record(self, number: int) -> Coordinates:
        """The partition and the offset of a record."""
        ...

    def misfits(self, connection: object) -> Mapping[int, RowsRefused]:
        """The records with a value that can never fit."""
        ...

    def rows_of(self, numbers: Sequence[int]) -> Mapping[str, CountedRows]:
        """The rows of some records, which are in ascending order, by output."""
        ...

    def hinted(self, refused: RowsRefused, numbers: Sequence[int], /) -> int | None:
        """The record that the refusal of these records' rows hints at, if it does."""
        ...

    def payloads(self, numbers: Sequence[int]) -> Mapping[int, Payload]:
        """The records themselves.

        :raises PlanOutdated: they are lost.
        """
        ...


class Delivery(Protocol):
    """Records of a source, whose rows are computed when they are asked for, and can be computed again."""

    @property
    def number(self) -> int:
        """The source's number of it, which stays if it is handed over again."""
        ...

    @property
    def ranges(self) -> Ranges:
        """The exact ranges of its records, without empty ones; of partitions that the claim has lost there are none."""
        ...

    @property
    def terms(self) -> Terms:
        """Those in which a member of a fleet has read the records. A job needs none: it has one of each partition."""
        ...

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> Mapping[str, KeptRows]:
        """Compute the rows of a part's records except some, by output.

        :raises PlanOutdated: what was computed is lost; the delivery must be planned again.
        """
        ...

    def careful(
        self,
        part: Ranges,
        *,
        suspects: Mapping[Coordinates, FunctionFailed | None],
        has_sequences: bool,
        seconds: float,
    ) -> AbstractContextManager[CarefulPart]:
        """Compute the rows of a part, so that those of single records can be left out; keep them until the block ends.

        :param suspects: records that have failed before. Those with an error have failed just now, and are not tried
            again; each of the others is tried alone if not all can be computed together.
        :param has_sequences: whether keys are the digests that letters have.
        :param seconds: how long to search for records that can't be computed.
        :raises Halve: memory can't hold their rows, or the search takes too long.
        :raises TooManyFailed: no record of many can be computed.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep, and raise if the source is being stopped: with 0, only look."""
        ...

    def failed(self, error: Exception) -> FunctionFailed | None:
        """Our error for one of `rows` or `careful` that a record may have caused; ``None`` for any other."""
        ...

    def unreadable(self) -> str | None:
        """The next step if the source itself can't read its records, for a reason that is in one of them."""
        ...

    def headers(self, limit: int) -> Sequence[Headers]:
        """The headers of at most as many of its records, with ``propagate=``: for links of a trace.

        :raises Exception: the source's own: only the links are lost.
        """
        ...

    def repeats(self) -> bool:
        """Whether the same rows are made each time: no chance is in them."""
        ...


ComputeLetters: TypeAlias = Callable[[Sequence[Letter]], AbstractContextManager[CarefulPart]]
"""Computes the rows of letters, which are numbered in their order.

It raises `Halve` if they are too many, and `TooManyFailed` if a function fails for all of them.
"""
