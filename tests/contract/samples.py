"""Samples of groups are kept in rings, for trends. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from offsetstore.errors import BrokerUnavailable, ConfigurationError
from offsetstore.offsets import OffsetRange
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, P0, P1, P2, WAIT, ContractParts
from tests.support.moments import at_time

HOUR, DAY, MONTH = timedelta(hours=1), timedelta(days=1), timedelta(days=31)
SECOND = timedelta(seconds=1)


def ago(span: timedelta) -> datetime:
    """The beginning of a slot of ten seconds that long ago."""
    return datetime.fromtimestamp((datetime.now(UTC) - span).timestamp() // 10 * 10, UTC)


class SampleContract(ContractParts):
    """What is kept of measurements, and for how long."""

    def record(self, at: datetime) -> None:
        """What is measured now, as if it were then."""
        self.store.record_samples(at_time(self.store.lag(None, self.broker), at))

    @pytest.mark.behaviour("DASH-1")
    def test_a_sample_holds_what_was_measured_and_what_the_run_has_counted(self, claim: Claim) -> None:
        ranges = {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)}
        self.give(claim, ranges)
        batch: dict[str, Any] = {"group": GROUP, "batch": 1, "ranges": ranges}
        claim.observers.on(BatchStarted(**batch))
        seconds = {"compute": 1.5, "commit": 0.25}
        claim.observers.on(BatchEnded(outcome="written", rows={"": 70}, seconds=seconds, **batch))
        claim.close()
        self.broker.set_log(P1, 10, 100)
        self.broker.records[P2] = dict.fromkeys(range(100), int(time.time() * 1000) - 600_000)
        lag = self.store.lag(None, self.broker)
        self.store.record_samples(lag)

        assert (lag.groups[GROUP].lag_seconds or 0) >= 599
        expected = Sample(
            at=lag.store.at,
            stored=70,
            log_end=300,
            lag=230,
            lag_seconds=lag.groups[GROUP].lag_seconds,
            headroom=0,
            batches=1,
            batch_seconds=1.75,
            rows=70,
            memory=self.store.runs(GROUP)[-1].status.memory,
            epoch=claim.token.epoch,
        )
        for span in (HOUR, DAY, MONTH):
            assert self.store.samples([GROUP, "unknown"], span) == {GROUP: [expected], "unknown": []}

    @pytest.mark.behaviour("DASH-1")
    def test_in_a_slot_the_worst_is_kept_of_the_lag_and_the_last_of_all_else(self, claim: Claim) -> None:
        at = ago(timedelta(minutes=2))
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30), P2: OffsetRange(0, 20)})
        self.record(at)
        self.broker.set_log(P1, 25, 100)
        self.record(at + SECOND)
        self.give(claim, {P0: OffsetRange(40, 100), P1: OffsetRange(30, 100), P2: OffsetRange(20, 50)})
        self.record(at + 2 * SECOND)
        self.broker.error = BrokerUnavailable("away")
        self.record(at + 3 * SECOND)
        [sample] = self.store.samples([GROUP], HOUR)[GROUP]
        assert (sample.at, sample.stored, sample.log_end) == (at + 3 * SECOND, 250, None)
        assert (sample.lag, sample.headroom) == (210, 5)

        self.record(at + SECOND)
        assert self.store.samples([GROUP], HOUR)[GROUP] == [sample], "an older measurement changes nothing"
        self.broker.error = None
        self.record(at + 10 * SECOND)
        _, after = self.store.samples([GROUP], HOUR)[GROUP]
        assert (after.lag, after.headroom) == (50, 50), "of its own slot"

    @pytest.mark.behaviour("DASH-1")
    def test_a_ring_is_written_over_and_keeps_its_size(self, claim: Claim) -> None:
        first = ago(timedelta(seconds=3_640))
        self.record(first)
        self.give(claim, {P0: OffsetRange(0, 100)})
        lag = self.store.lag(None, self.broker)
        for number in range(1, 365):
            at = first + 10 * number * SECOND
            self.store.record_samples(at_time(lag, at))

        hour = self.store.samples([GROUP], HOUR)[GROUP]
        assert 345 < len(hour) <= 360
        assert hour[-1].at == first + 3_640 * SECOND
        assert {after.at - before.at for before, after in pairwise(hour)} == {10 * SECOND}
        assert {one.lag for one in hour} == {200}, "nothing of what was there"
        assert 60 <= len(self.store.samples([GROUP], DAY)[GROUP]) <= 62
        assert 3 <= len(self.store.samples([GROUP], MONTH)[GROUP]) <= 4

    @pytest.mark.behaviour("DASH-1")
    def test_the_finest_ring_that_covers_the_span_is_read_and_nothing_before_it(self, claim: Claim) -> None:
        minute, day = timedelta(minutes=1), timedelta(days=1)
        spans = (30 * day, 2 * day, 23 * HOUR, 50 * minute, 4 * minute, 4 * minute - 10 * SECOND)
        times = [ago(span) for span in spans]
        for at in times:
            self.record(at)

        def found(span: timedelta, first: int | None = None) -> list[datetime]:
            return [one.at for one in self.store.samples([GROUP], span)[GROUP]][:first]

        assert found(3 * minute) == []
        assert found(5 * minute) == times[4:]
        assert found(HOUR) == times[3:]
        assert found(HOUR + SECOND, 1) == times[3:4]
        assert found(DAY, 2) == times[2:4]
        assert found(DAY + SECOND, 1) == times[2:3]
        assert found(3 * day, 2) == times[1:3]
        assert found(MONTH, 3) == times[:3]

    @pytest.mark.behaviour("DASH-1")
    def test_any_number_of_processes_may_record_at_once(self) -> None:
        groups = [f"{GROUP}-{number}" for number in range(20)]
        for group in reversed(groups):
            self.store.claim(group, self.broker, mirror_every=None)
        lag, first = self.store.lag(None, self.broker), ago(timedelta(minutes=10))
        barrier = threading.Barrier(4)

        def record(writer: int) -> None:
            order = reversed(groups) if writer % 2 else groups
            ours = replace(lag, groups={group: lag.groups[group] for group in order})
            barrier.wait(WAIT)
            for number in range(25):
                self.store.record_samples(at_time(ours, first + 10 * number * SECOND + writer * SECOND))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(record, writer) for writer in range(4)]:
                done.result(60)

        found = self.store.samples(groups, HOUR)
        assert found.keys() == set(groups)
        last = first + 3 * SECOND
        for samples in found.values():
            assert [one.at for one in samples] == [last + 10 * number * SECOND for number in range(25)]

    @pytest.mark.behaviour("DASH-1")
    def test_samples_go_with_a_rename_and_end_with_a_delete(self, claim: Claim) -> None:
        def counts() -> dict[str, int]:
            groups = (GROUP, "copy", "invoicing")
            return {group: len(found) for group, found in self.store.samples(groups, HOUR).items()}

        claim.close()
        late = at_time(self.store.lag(None, self.broker), ago(timedelta(minutes=2)))
        self.record(ago(timedelta(minutes=4)))
        kept = self.store.samples([GROUP], HOUR)[GROUP]
        assert len(kept) == 1
        self.store.copy_group(GROUP, "copy", reason="ticket 17")
        self.store.rename_group(GROUP, "invoicing", reason="ticket 17")
        self.store.record_samples(late)
        assert counts() == {GROUP: 0, "copy": 0, "invoicing": 1}
        assert [self.store.samples(["invoicing"], span)["invoicing"] for span in (HOUR, MONTH)] == [kept, kept]

        self.record(ago(timedelta(minutes=1)))
        assert counts() == {GROUP: 0, "copy": 1, "invoicing": 2}
        self.store.delete_group("invoicing", reason="ticket 18")
        self.store.record_samples(late)
        self.record(ago(timedelta(seconds=30)))
        assert counts() == {GROUP: 0, "copy": 2, "invoicing": 0}

    def test_a_sample_that_is_in_the_way_of_a_rename_stays(self, claim: Claim) -> None:
        claim.close()
        for minutes in (4, 2):
            self.record(ago(timedelta(minutes=minutes)))
        first, second = self.store.samples([GROUP], HOUR)[GROUP]
        self.store.rename_group(GROUP, "invoicing", reason="ticket 17")
        late = replace(first, stored=1, epoch=self.owner().token.epoch)
        with self.session() as session:  # by a statement that has waited for the rename
            record_samples(people(session), {GROUP: late})
        self.store.rename_group("invoicing", GROUP, reason="a mistake")

        assert self.store.samples([GROUP], HOUR)[GROUP] == [late, second]

    @pytest.mark.behaviour("DASH-1")
    def test_invalid_spans_and_numbers_of_points_are_refused(self) -> None:
        for span in (timedelta(0), -HOUR, MONTH + SECOND):
            with pytest.raises(ConfigurationError, match="at most 31 days"):
                self.store.samples([GROUP], span)
        with pytest.raises(ConfigurationError, match="points must be 1 or more"):
            self.store.samples([GROUP], HOUR, points=0)
        assert self.store.samples([], HOUR) == {}
