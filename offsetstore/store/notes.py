"""The metadata that a transaction reads and writes: a note beside each stored offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from offsetstore.errors import AdvanceMismatch, PartitionLost, StaleClaim
from offsetstore.offsets import Ranges, Token, TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.metadata import Keep, Text, dump, format_of, load
from offsetstore.protocol.replay import Outcome
from offsetstore.store.identity import taken_by
from offsetstore.store.locking import Locks
from offsetstore.store.term import ForNextAdvance


class Notes:
    """The metadata of one transaction's partitions.

    :param used: what it has used up of `Claim.store_metadata`.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._written: set[TopicPartition] = set()
        self.used: dict[TopicPartition, ForNextAdvance] = {}

    def read(self, tp: TopicPartition, *, cache: bool | None = None) -> object:
        """The partition's metadata; see `Work.metadata`."""
        locks, claim = self._locks, self._locks.claim
        session = locks.locked("tx.metadata")
        is_cached = format_of(claim.formats, tp.topic).cache if cache is None else cache
        term = locks.terms.get(tp) or claim.terms.get(tp)
        if term is None and (is_cached or claim.is_member) and (error := claim.no_term(tp)) is not None:
            raise error
        if is_cached:
            return load(claim.formats, tp, None if term is None else term.metadata)
        row = session.read_metadata(claim.group, tp.topic, tp.partition).get(tp)
        if row is None:
            return None
        if claim.is_member and row.token != claim.token:
            raise locks.lost([tp])  # it is not locked, and its group may still be the fleet's
        locks.check_token(row.token, tp)
        return load(claim.formats, tp, row.text)

    def write(self, tp: TopicPartition, value: object) -> None:
        """Write metadata at the stored offset, or at the one that the transaction advances to; see `Work`.

        In a replay of letters nothing is written.
        """
        locks, claim = self._locks, self._locks.claim
        session = locks.writing("tx.write_metadata")
        if tp not in locks.decisions:
            raise AdvanceMismatch(
                "tx.write_metadata names a partition that was not locked",
                topic_partition=tp,
                next_step="Lock it in tx.lock; an empty range will do.",
            )
        if (decision := locks.decisions[tp]).is_stored:
            raise AdvanceMismatch(
                "tx.write_metadata names a partition whose range is in the results already: its metadata belongs to a "
                "later offset, and would be replaced",
                topic_partition=tp,
                found=f"range {decision.range}, stored {decision.stored}",
                expected="a partition of tx.ranges, or one locked with an empty range at the stored offset",
            )
        # The same function writes batches and letters: here it would replace a later offset's metadata.
        if locks.is_replay:
            return
        locks.has_written = True
        if session.write_metadata(claim.group, claim.token, dump(claim.formats, [tp], value)) != 1:
            raise StaleClaim("the row changed although it was locked", topic_partition=tp, found="another token")
        self._written.add(tp)

    def at_advance(self, wanted: Ranges, value: object | Keep) -> dict[TopicPartition, Text]:
        """The texts that `Transaction.advance` writes: one value for all, else what the claim stores."""
        partitions = self._writable(wanted)
        given = {} if isinstance(value, Keep) else dump(self._locks.claim.formats, partitions, value)
        return self.texts(partitions, given)

    def at_finish(self, wanted: Ranges, texts: Mapping[TopicPartition, Text]) -> dict[TopicPartition, Text]:
        """The texts that `Transaction.finish` writes: the given ones where nothing was written, else the claim's."""
        partitions = self._writable(wanted)
        given = {tp: text for tp, text in texts.items() if tp in partitions and tp not in self._written}
        return self.texts(partitions, given)

    def texts(
        self, partitions: Collection[TopicPartition], given: Mapping[TopicPartition, Text]
    ) -> dict[TopicPartition, Text]:
        """The texts that an advance of these partitions writes: the given ones, else what the claim stores.

        What the claim stores is used up even if something else is written: it was for this advance (decision 0032).
        """
        terms = self._locks.terms
        stored = {tp: text for tp in partitions if (text := terms[tp].next) is not None}
        self.used |= stored
        return {**{tp: kept.text for tp, kept in stored.items() if tp not in self._written}, **given}

    def _writable(self, wanted: Ranges) -> Collection[TopicPartition]:
        """The partitions whose metadata may be written."""
        # The metadata of a partition whose range was stored before belong to a later offset.
        decisions = self._locks.decisions
        stored = {tp for tp, decision in decisions.items() if decision.outcome is Outcome.SKIP and decision.is_stored}
        return wanted.keys() - stored if stored else wanted.keys()


def read_own(
    session: Session, group: str, token: Token, topic: str, partition: int | None, *, group_token: Token | None = None
) -> dict[TopicPartition, Text]:
    """Read the metadata of one partition, or of all the topic's partitions that have rows, for the owner of the group.

    :param group_token: the token of the group's row, if it is not ``token``: a fleet's.
    :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
    :raises PartitionLost: a row has the token of another member of the fleet.
    """
    rows = session.read_metadata(group, topic, partition)
    stale = next((tp for tp, row in rows.items() if row.token != token), None)
    if rows and stale is None:
        return {tp: row.text for tp, row in rows.items()}
    owner, expected = session.group(group), group_token or token
    if owner is None or owner.token != expected or (stale is not None and expected == token):
        raise StaleClaim(
            f"group {group!r} has been claimed, reset or renamed; its metadata belongs to another job",
            topic_partition=stale if partition is None else TopicPartition(topic, partition),
            found=taken_by(session, group),
            expected=str(expected),
        )
    if stale is not None:
        raise PartitionLost("metadata of a partition that another member of the fleet has", topic_partition=stale)
    return {}
