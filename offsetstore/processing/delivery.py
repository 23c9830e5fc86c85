"""What a source hands over, such as Spark's micro-batch, and what the engine asks of it."""

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
    """Why the job's own code, not the database, rejected a record.

    :param cause: ``"rejected"``, or ``"raised"`` by a handler after ``attempts`` tries.
    :param shown: see `offsetstore.processing.handling.HandlerError`.
    """

    error: LetterError
    cause: Cause = "rejected"
    attempts: int = 0
    shown: str = ""


class CarefulPart(Protocol):
    """Records with their computed rows; each row's record is known. Records are numbered from 0, in order."""

    @property
    def numbers(self) -> Sequence[int]:
        """The records that exist, ascending."""
        ...

    @property
    def with_rows(self) -> Sequence[int]:
        """The records that make rows and are not rejected: a rejected one may not reach what fails for others."""
        ...

    @property
    def accepted(self) -> Sequence[int]:
        """The records that prove that not all are bad: they make rows, or a handler did not fail for them."""
        ...

    @property
    def is_handled(self) -> bool:
        """Whether a handler was called for each record."""
        ...

    @property
    def keys(self) -> Mapping[int, Hashable]:
        """The key of each record that has one."""
        ...

    @property
    def rejected(self) -> Mapping[int, Rejected]:
        """The records that transform rejected, or for which a handler failed."""
        ...

    @property
    def failed(self) -> Mapping[int, FunctionFailed]:
        """The records that can't be computed, although all others could be, after them. They have no rows here."""
        ...

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored ones, which are assumed to be older."""
        ...

    def fail_again(self, numbers: Sequence[int]) -> Mapping[int, FunctionFailed]:
        """Compute some of the failed records once more; return the ones that fail again.

        :raises FunctionFailed: a record that could be computed before fails now: no record is to blame.
        """
        ...

    def record(self, number: int) -> Coordinates:
        """The partition and the offset of a record."""
        ...

    def misfits(self, connection: object) -> Mapping[int, RowsRefused]:
        """The records with a value that can never be stored."""
        ...

    def rows_of(self, numbers: Sequence[int]) -> Mapping[str, CountedRows]:
        """The rows of these records, by output; ``numbers`` are ascending."""
        ...

    def hinted(self, refused: RowsRefused, numbers: Sequence[int], /) -> int | None:
        """The record that the refusal of these records' rows points to, if any."""
        ...

    def payloads(self, numbers: Sequence[int]) -> Mapping[int, Payload]:
        """The records themselves.

        :raises PlanOutdated: they are no longer available.
        """
        ...


class Delivery(Protocol):
    """Records of a source. Their rows are computed on request, and can be computed again."""

    @property
    def number(self) -> int:
        """The number that the source gives it; the same if it is handed over again."""
        ...

    @property
    def ranges(self) -> Ranges:
        """The exact ranges of its records, without empty ones and without partitions that the claim has lost."""
        ...

    @property
    def terms(self) -> Terms:
        """The terms in which a member of a fleet read the records. A job, with one term per partition, gives none."""
        ...

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> Mapping[str, KeptRows]:
        """Compute the rows of a part's records, except those in ``without``, by output.

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
        """Compute the rows of a part, so that single records can be left out; keep them until the block ends.

        :param suspects: records that failed before. One with an error has failed just now, and is not tried again; each
            of the others is tried alone if they can't all be computed together.
        :param has_sequences: whether keys are the digests that letters have.
        :param seconds: the time limit of the search for records that can't be computed.
        :raises Halve: memory can't hold their rows, or the search takes too long.
        :raises TooManyFailed: no record of many can be computed.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep, and raise if the source is being stopped; with 0, only check."""
        ...

    def failed(self, error: Exception) -> FunctionFailed | None:
        """Translate an error of `rows` or `careful` that a record may have caused; ``None`` for any other error."""
        ...

    def unreadable(self) -> str | None:
        """The next step to show if the source can't read its records because of one of them; else ``None``."""
        ...

    def headers(self, limit: int) -> Sequence[Headers]:
        """The headers of at most ``limit`` records, if ``propagate=`` is set: for the links of a trace.

        :raises Exception: the source's own; only the links are lost.
        """
        ...

    def repeats(self) -> bool:
        """Whether computing again makes the same rows: the transform is deterministic."""
        ...


ComputeLetters: TypeAlias = Callable[[Sequence[Letter]], AbstractContextManager[CarefulPart]]
"""Computes the rows of letters, which are numbered in the order given.

Raises `Halve` if there are too many, and `TooManyFailed` if a function fails for all of them.
"""
