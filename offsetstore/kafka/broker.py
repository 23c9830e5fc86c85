"""A job's view of Kafka: ids, log ends and a group's offsets, in a constant number of round trips; and the mirror."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from threading import Lock
from typing import Any, Final, NoReturn, TypeVar

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError, TopicMissing
from offsetstore.kafka import requests
from offsetstore.kafka.acls import Acl, probed_groups
from offsetstore.kafka.client import BACKOFF, Client, Deadline, Missing
from offsetstore.kafka.errors import PASSING, no_answer
from offsetstore.kafka.group_offsets import GroupOffsets, committed_offsets
from offsetstore.kafka.outlet import Outlet
from offsetstore.kafka.overview import GroupConnections, find_first_records, read_records, take_snapshot
from offsetstore.kafka.settings import ClientSettings, read_options, topic_names
from offsetstore.kafka.truncation import PARTITIONS, find_resets
from offsetstore.offsets import BrokerView, CommittedOffset, EpochPair, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.ports import FoundRecord, KafkaSnapshot
from offsetstore.runtime.functions import dropped, without_frames
from offsetstore.runtime.process import expect_own
from offsetstore.text import counted, did_you_mean

_T = TypeVar("_T")

_log = logging.getLogger("offsetstore")  # `offsetstore.kafka` has librdkafka's own lines, and is silent by default

# Shares of the time that a call has left: for the existing client, and for each new one but the last.
_KEPT_SHARE: Final = 1 / 3
_SHARES: Final = (1 / 2,)
# Partitions in one request for the ends of logs: librdkafka searches the request's whole list for each answer.
_PARTITIONS: Final = 2000
# For members: every broker is asked, and one that is down would take up the whole timeout.
_LOOK_SECONDS: Final = 3.0
_MAX_TIMEOUT: Final = 3600.0  # librdkafka's upper limit of a request, in seconds


class _Requests:
    """An admin client, made by the first request. Threads wait for each other."""

    def __init__(self, settings: ClientSettings) -> None:
        self.lock = Lock()
        self.client: Client | None = None
        self._settings = settings
        self._is_silent = False

    def ask(self, asking: Callable[[Client, Deadline], _T], deadline: Deadline) -> _T:
        """Ask with the existing client; if it gets no answer in a third of the time, try a new one, twice.

        Wait for other threads' requests meanwhile, within the same deadline.

        :raises BrokerUnavailable: no answer, or another thread's request took the whole time.
        """
        if not self.lock.acquire(timeout=deadline.rest):
            raise BrokerUnavailable(f"another thread's request to Kafka took more than {deadline.seconds:g} s")
        try:
            # For minutes, librdkafka asks only the broker that it knows as the controller, even after that has died and
            # others would answer. For some seconds, a new client can learn of it from a broker that has not noticed.
            for share in _SHARES if self.client is None else (_KEPT_SHARE, *_SHARES):
                with dropped(BrokerUnavailable):
                    return self._ask_with(asking, deadline.part(share))
            return self._ask_with(asking, deadline)
        finally:
            self.lock.release()

    def _ask_with(self, asking: Callable[[Client, Deadline], _T], deadline: Deadline) -> _T:
        client = self.client = self.client or Client(self._settings.config, self._tell_silence)
        try:
            client.forget()
            answer = asking(client, deadline)
        except Missing as missing:
            raise _missing(missing, client.all_topics(deadline), self._settings.address) from None
        except BrokerError:
            # It would go on trying in the background, and wrong passwords lock accounts; a new client starts afresh.
            self.drop()
            raise
        self._is_silent = False
        return answer

    def _tell_silence(self, doing: str) -> None:
        """Tell whoever waits at a terminal, once in an outage."""
        if not self._is_silent:
            self._is_silent = True
            _log.warning("no answer from Kafka yet, still waiting while %s", doing)

    def drop(self) -> None:
        """Close the client. The caller has the lock."""
        if self.client is not None:
            self.client.close()
        self.client = None


class Broker:
    """A cluster, reached through librdkafka with your own settings, or with those of Spark's reader (`from_spark`).

    The client is made by the first request, for this process: librdkafka's threads don't survive a fork, and a Broker
    that was used before a fork can't be used after it. Threads can share a Broker; they then wait for each other. It
    can't be pickled, since its settings can hold a password. ``includes_headers`` says whether Spark's reader has
    a column with them.
    """

    def __init__(
        self, librdkafka_config: Mapping[str, Any], *, topics: Sequence[str] | None = None, timeout: float = 15.0
    ) -> None:
        """Check what can be checked without a broker; librdkafka checks the settings at the first request.

        :param librdkafka_config: librdkafka's names and values. ``isolation.level`` decides what counts as the end of a
            log, and must be the one that the job reads with. The client's callbacks (``oauth_cb``) run during requests.
        :param topics: the value of the property `topics`.
        :param timeout: seconds that one call may take at most.
        :raises ConfigurationError: no address, a setting of Java's or Spark's, an invalid timeout, no list of names.
        """
        self._settings = ClientSettings(librdkafka_config)
        self._topics = None if topics is None else topic_names(topics)
        self._assigned: Mapping[str, frozenset[int]] = {}
        self.includes_headers = False
        check_seconds("timeout", timeout, most=_MAX_TIMEOUT)
        self._timeout = timeout
        self._requests = _Requests(self._settings)
        # Separate, so that a mirror or a member that looks at the logs does not delay a batch's requests.
        self._looks = _Requests(self._settings)
        # Separate, so that a mirror that waits for the group's coordinator does not delay a batch's requests.
        self._committing = Lock()
        self._group_offsets: GroupOffsets | None = None
        self._group_connections: GroupConnections | None = None

    @classmethod
    def from_spark(cls, options: Mapping[str, object], *, timeout: float = 15.0) -> Broker:
        """Take the same mapping that goes to ``spark.readStream.format("kafka").options(**options)``.

        :raises ConfigurationError: a setting that librdkafka has no counterpart for, or ``subscribePattern``.
        :raises UnsupportedQuery: ``failOnDataLoss=false``, or an option that overrides ``startingOffsets`` or names an
            end, such as ``startingTimestamp``.
        """
        reader = read_options(options)
        broker = cls(reader.settings, topics=reader.topics, timeout=timeout)
        broker._assigned = reader.partitions or {}
        broker.includes_headers = reader.headers
        return broker

    def __repr__(self) -> str:
        return f"Broker({self._settings!r}, topics={self._topics!r}, timeout={self._timeout:g})"

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            "a Broker can't be pickled: its settings can hold a password, and its client belongs to this process",
            next_step="Create the Broker where it is used.",
        )

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics that the options name."""
        return self._topics

    def view(
        self,
        group: str,
        topics: Collection[str],
        *,
        timestamp_ms: int | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> BrokerView:
        """Ask for ids, log ends and committed offsets; see `BrokerOffsets`.

        The end is the high watermark, because that is how far Spark reads; with ``isolation.level=read_committed`` it
        is the last stable offset, because Spark then stops there. If ``assign`` names partitions, the view holds
        only those.

        :raises ConfigurationError: no group, no topic, a negative timestamp, settings that librdkafka refuses, a fork.
        """
        names = topic_names(topics)
        if not group or not names:
            raise ConfigurationError(
                "a view needs a group and topics",
                found=(group, names),
                expected="a group's name and at least one topic",
            )
        if timestamp_ms is not None:
            check_whole("timestamp_ms", timestamp_ms, "milliseconds since 1970")

        def ask(client: Client, deadline: Deadline) -> BrokerView:
            [described] = client.answers([requests.topics(names)], deadline)
            cluster_id = client.cluster_id(names[0], deadline)
            ids = {topic: requests.topic_id(described[topic]) for topic in names}
            numbers = {topic: requests.partition_numbers(described[topic]) for topic in names}
            asked = [tp for tp in self._partitions(numbers) if partitions is None or tp in partitions]
            committed = committed_offsets(self._settings, group, asked, deadline)
            ends, *at = self._logs(client, asked, deadline, timestamp_ms=timestamp_ms)
            if at:  # asked at the same time, so a record may have come in between
                ends = {tp: replace(log, end=max(log.end, at[0][tp])) for tp, log in ends.items()}
            logs = {topic: TopicLog(topic_id, {}, len(numbers[topic])) for topic, topic_id in ids.items()}
            for tp in asked:
                logs[tp.topic].partitions[tp.partition] = ends[tp]
            # Kafka answers -1 if no record is that recent.
            timestamps = {tp: ends[tp].end if at[0][tp] < 0 else at[0][tp] for tp in asked} if at else None
            return BrokerView(
                cluster_id=cluster_id,
                topics=logs,
                committed=committed,
                timestamps=timestamps,
            )

        return self._look(ask)

    def _logs(
        self,
        client: Client,
        partitions: Sequence[TopicPartition],
        deadline: Deadline,
        *,
        timestamp_ms: int | None = None,
    ) -> tuple[dict[TopicPartition, Watermarks], *tuple[dict[TopicPartition, int], ...]]:
        """Each log's ends, and where it has the first record at the time; all requests are sent at once."""
        parts = [partitions[first : first + _PARTITIONS] for first in range(0, len(partitions), _PARTITIONS)]
        specs = [(requests.EARLIEST, False), (requests.LATEST, False)]
        if self._settings.read_committed:
            specs.append((requests.LATEST, True))
        if timestamp_ms is not None:
            specs.append((requests.at(timestamp_ms), self._settings.read_committed))
        asked = [requests.offsets(part, spec, read_committed=committed) for spec, committed in specs for part in parts]
        answers = iter(client.answers(asked, deadline))
        begin, high, *rest = [{tp: info for _ in parts for tp, info in next(answers).items()} for _ in specs]
        stable = rest.pop(0) if self._settings.read_committed else high
        logs = {tp: requests.watermarks(begin[tp], stable[tp], high[tp]) for tp in partitions}
        return logs, *({tp: info.offset for tp, info in infos.items()} for infos in rest)

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Ask for the ends of logs alone; see `BrokerOffsets`."""
        wanted = sorted(partitions)
        if not wanted:
            return {}
        return self._look(lambda client, rest: self._logs(client, wanted, rest)[0])

    def find_truncated(
        self, pairs: Mapping[TopicPartition, EpochPair]
    ) -> dict[TopicPartition, int | BrokerError | None]:
        """Ask which logs no longer have these epochs up to these offsets; see `BrokerOffsets`.

        ``timeout`` applies to each 200 partitions, since leaders are asked about every partition. If no partition of
        such a part gets an answer, the remaining parts have the same error.

        :raises ConfigurationError: settings that librdkafka refuses, a fork.
        """
        self._refuse_after_fork()
        untold: dict[TopicPartition, BrokerError] = {}
        resets: dict[TopicPartition, int | None] = dict.fromkeys(pairs)
        for _ in range(2):  # a broker that lags behind its leader may answer once from a log that is too short
            asked, resets = sorted(resets), {}
            for first in range(0, len(asked), PARTITIONS):  # each of them in the time that one request has
                part = {tp: pairs[tp] for tp in asked[first : first + PARTITIONS]}
                try:
                    answers = find_resets(self._settings, part, Deadline.after(self._timeout))
                except BrokerError as error:
                    # Nobody answers, and wrong passwords lock accounts, so the rest is not asked about.
                    untold |= dict.fromkeys(asked[first:], without_frames(error))
                    break
                for tp, answer in answers.items():
                    if isinstance(answer, BrokerError):
                        untold[tp] = answer
                    else:
                        resets[tp] = answer
            try:
                logs = self.log_ends(resets)
            except BrokerError as error:
                untold |= dict.fromkeys(resets, without_frames(error))
                resets = {}
            else:
                # An offset outside the log gets the same code: only a log that holds it was truncated (decision 0049).
                resets = {
                    tp: at
                    for tp, at in resets.items()
                    if (high := logs[tp].high) is not None and logs[tp].beginning <= pairs[tp].offset <= high
                }
        return {**untold, **resets}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        """Ask for topic ids only, in one request."""
        names = topic_names(topics)
        if not names:
            return {}

        def ask(client: Client, deadline: Deadline) -> dict[str, str | None]:
            [described] = client.answers([requests.topics(names)], deadline)
            return {topic: requests.topic_id(described[topic]) for topic in names}

        return self._ask(ask)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Copy offsets to Kafka's group; see `BrokerOffsets`.

        The connection is kept for the next call, and is separate from that of `view` and `topic_ids`: neither waits for
        the other.

        :raises ConfigurationError: no group, settings that librdkafka refuses, a fork.
        """
        if not group:
            raise ConfigurationError("no consumer group is given", found=repr(group), expected="a group's name")
        if not offsets:
            return
        self._with_group_offsets(group, lambda kept, deadline: kept.commit(offsets, deadline))

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Read what the group has committed, on the connection of `commit`; see `BrokerOffsets`.

        :raises ConfigurationError: no group, settings that librdkafka refuses, a fork.
        """
        if not group:
            raise ConfigurationError("no consumer group is given", found=repr(group), expected="a group's name")
        if not partitions:
            return {}
        return self._with_group_offsets(group, lambda kept, deadline: kept.committed(partitions, deadline))

    def has_members(self, group: str) -> bool:
        """Ask whether a consumer has joined the group; see `BrokerOffsets`.

        Every broker is asked, since each knows only the groups it coordinates; one that is down costs three seconds.
        """

        def ask(client: Client, deadline: Deadline) -> bool:
            while True:
                [answer] = client.answers([requests.groups()], deadline)
                outcome = requests.has_members(answer, group)
                if isinstance(outcome, bool):
                    return outcome
                if outcome.code() not in PASSING or deadline.rest <= BACKOFF:
                    raise no_answer(outcome, (), requests.groups().doing, deadline.seconds)
                time.sleep(BACKOFF)

        return self._ask(ask, seconds=min(self._timeout, _LOOK_SECONDS))

    def missing_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Ask which of these ACLs the broker's own credentials lack, whoever the ACLs are for.

        Nothing is written, and a group's members are not disturbed. Each group takes a round trip or two.

        :raises ConfigurationError: an ACL for all topics or groups, or for a transactional id; settings that librdkafka
            refuses; a fork.
        :raises TopicMissing: Kafka has no such topic, as far as this principal may know.
        :raises BrokerUnavailable: no answer about the topics, or about a group, within ``timeout``.
        :raises BrokerRefused: Kafka refuses the credentials.
        """
        groups = list(probed_groups(acls))
        topics = tuple(dict.fromkeys(acl.name for acl in acls if acl.resource == "topic"))

        def ask(client: Client, deadline: Deadline) -> dict[str, frozenset[str]]:
            [described] = client.answers([requests.topic_permissions(topics)], deadline)
            return {topic: requests.allowed(description) for topic, description in described.items()}

        permitted = self._ask(ask) if topics else {}
        missing = {acl for acl in acls if acl.resource == "topic" and acl.operation not in permitted[acl.name]}
        for acl, group in groups:
            offsets = GroupOffsets(self._settings, group)
            try:
                operation = "READ" if acl.operation == "READ" else "DESCRIBE"  # a group has no other
                if not offsets.allows(operation, topics[0] if topics else group, Deadline.after(self._timeout)):
                    missing.add(acl)
            finally:
                offsets.close()
        return tuple(acl for acl in acls if acl in missing)

    def create_acls(self, acls: Collection[Acl], *, dry_run: bool = False) -> tuple[Acl, ...]:
        """Create the missing ACLs, with an administrator's credentials, and return them.

        An ACL that another one includes, for a prefix or for all topics, is created all the same.

        :param dry_run: create nothing; return what would be created.
        :raises ConfigurationError: settings that librdkafka refuses; a fork.
        :raises BrokerUnavailable: no answer within ``timeout``; some may have been created.
        :raises BrokerRefused: the credentials may not create ACLs (ALTER on the cluster); or Kafka has no authorizer,
            which a dry run is not told.
        """
        principals = dict.fromkeys(acl.principal for acl in acls)

        def ask(client: Client, deadline: Deadline) -> tuple[Acl, ...]:
            client.cluster_id(requests.OFFSETS_TOPIC, deadline)  # before the permissions: see there
            asked = [requests.cluster_permissions(), *map(requests.acls_of, principals)]
            cluster, *listed = client.answers(asked, deadline)
            # Without DESCRIBE on the cluster, which ALTER includes, Kafka would list no ACLs at all (decision 0039).
            if "ALTER" not in requests.allowed(cluster["cluster"]):
                raise BrokerRefused(
                    "these credentials may not create ACLs",
                    found="no ALTER on the cluster",
                    next_step="Use an administrator's, or give an administrator what `offsetstore acls print` prints.",
                )
            there = dict(zip(principals, listed, strict=True))
            missing = tuple(acl for acl in dict.fromkeys(acls) if not requests.has_acl(there[acl.principal], acl))
            if missing and not dry_run:
                client.answers([requests.new_acls(missing)], deadline)
            return missing

        return self._ask(ask)

    def snapshot(self, groups: Mapping[str, Collection[str]]) -> KafkaSnapshot:
        """Read many topics and groups; what can't be read holds its error. See `BrokerOverview`.

        The end of a log is its high watermark, also with ``isolation.level=read_committed``: the last stable offset is
        beside it. ``assign`` does not narrow the topics.

        :raises ConfigurationError: no group's name, settings that librdkafka refuses, a fork.
        """
        asked = {group: topic_names(topics) for group, topics in groups.items()}
        if not all(asked):
            raise ConfigurationError("a group's name is empty", expected="names of groups")

        def ask(client: Client, deadline: Deadline) -> KafkaSnapshot:
            if self._group_connections is None:
                self._group_connections = GroupConnections(self._settings)
            return take_snapshot(client, self._group_connections, asked, deadline)

        return self._ask(ask)

    def first_records(
        self, asked: Collection[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], FoundRecord | None]:
        """Look up the first records at or after times; see `BrokerOverview`."""
        if not asked:
            return {}
        return self._ask(lambda client, deadline: find_first_records(client, asked, deadline))

    def read_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundRecord | None]:
        """Read each partition's first record at or above an offset; see `BrokerOverview`."""
        self._refuse_after_fork()
        return read_records(self._settings, offsets) if offsets else {}

    def outlet(self, name: str, *, anchor: str) -> Outlet:
        """Return a relay's producer, which has its own connections; see `Outlet`.

        :raises ConfigurationError: settings that librdkafka refuses, or a topic's name that Kafka does not allow.
        """
        [topic] = topic_names([anchor])
        return Outlet(self._settings, name=name, anchor=topic, timeout=self._timeout)

    def _with_group_offsets(self, group: str, use: Callable[[GroupOffsets, Deadline], _T]) -> _T:
        deadline = Deadline.after(self._timeout)
        self._refuse_after_fork()
        if not self._committing.acquire(timeout=deadline.rest):
            raise BrokerUnavailable(f"another thread's commit to Kafka took more than {self._timeout:g} s")
        try:
            if self._group_offsets is None or self._group_offsets.group != group:
                self._drop_group_offsets()
                self._group_offsets = GroupOffsets(self._settings, group)
            return use(self._group_offsets, deadline)
        except BaseException:
            # A late answer must not be taken for the next commit's, and wrong passwords lock accounts.
            self._drop_group_offsets()
            raise
        finally:
            self._committing.release()

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        self._refuse_after_fork()
        with self._requests.lock:
            self._requests.drop()
            if self._group_connections is not None:
                self._group_connections.close()
        with self._looks.lock:
            self._looks.drop()
        with self._committing:
            self._drop_group_offsets()

    def _partitions(self, existing: dict[str, list[int]]) -> list[TopicPartition]:
        """Sort the partitions; if ``assign`` names some, keep only those."""
        for topic, assigned in self._assigned.items():
            if gone := sorted(assigned - set(existing.get(topic, assigned))):
                raise TopicMissing(
                    f"Kafka does not have these partitions of {topic}: {', '.join(map(str, gone))}",
                    next_step="Correct `assign`; no job was fenced.",
                )
        return sorted(
            TopicPartition(topic, number)
            for topic, numbers in existing.items()
            for number in self._assigned.get(topic, numbers)
        )

    def _ask(self, asking: Callable[[Client, Deadline], _T], *, seconds: float | None = None) -> _T:
        self._refuse_after_fork()
        return self._requests.ask(asking, Deadline.after(self._timeout if seconds is None else seconds))

    def _look(self, asking: Callable[[Client, Deadline], _T]) -> _T:
        """Like `_ask`, by the other client, which delays no batch's requests."""
        self._refuse_after_fork()
        return self._looks.ask(asking, Deadline.after(self._timeout))

    def _drop_group_offsets(self) -> None:
        if self._group_offsets is not None:
            self._group_offsets.close()
        self._group_offsets = None

    def _refuse_after_fork(self) -> None:
        for client in (self._requests.client, self._looks.client, self._group_offsets, self._group_connections):
            if client is not None:
                expect_own(
                    client.pid,
                    "this Broker was used before a fork, and its client's threads live in the other process",
                    "Create a Broker in this process, or start processes with the spawn method.",
                )


def _missing(missing: Missing, there: list[str], address: str) -> TopicMissing:
    gone = sorted({key.topic if isinstance(key, TopicPartition) else str(key) for key in missing.keys})
    near = sorted({match for name in gone for match in get_close_matches(name, there, n=3)} - set(gone))
    return TopicMissing(
        f"Kafka has no topic {', '.join(gone)}",
        found=f"{counted(len(there), 'topic')} of other names at {address}, of those that this principal may see",
        expected=f"{'this topic' if len(gone) == 1 else 'these topics'} at these brokers",
        next_step=did_you_mean(near) + TopicMissing.default_next_step,
    )
