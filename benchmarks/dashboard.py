"""``offsetstore dashboard`` with 200 groups, 10,000 partitions and 1,000,000 dead letters: its pages, and its memory.

Run with ``python -m benchmarks.dashboard`` on a quiet machine; a quarter of an hour. The dashboard is a process of its
own, with the role that ``offsetstore grants --dashboard-role`` prints, and asks a `StaticBroker` for the logs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from typing import IO, Final
from urllib.parse import urlencode, urlsplit

import psycopg

from offsetstore import OffsetStore, TopicPartition
from offsetstore.local.postgres import PostgresServer
from offsetstore.monitoring.dashboard.context import SPANS, Deciding
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog, Watermarks
from offsetstore.operations.samples import RINGS
from offsetstore.operations.stored_letters import LetterCursor
from offsetstore.postgres.grants import grant_dashboard
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.runtime.background import as_main_work
from offsetstore.testing import StaticBroker
from tests.support.browser import browse

GROUPS: Final = 200
LARGE: Final = "billing"
"""The group that most is of; `SMALL` are the others."""
SMALL: Final = [f"shipping-{number:03}" for number in range(1, GROUPS)]
TOPICS: Final = {
    **dict.fromkeys([f"payments-{number}" for number in range(5)], 1_005),
    **dict.fromkeys([f"orders-{number:03}" for number in range(1, GROUPS)], 25),
}
"""The partitions of each; five topics are of `LARGE`."""
END: Final = 1_000

PAINTS: Final = 10
PAINTED: Final = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"

PLANT: Final = f"""
CREATE TEMP TABLE groups AS
SELECT n, CASE n WHEN 0 THEN '{LARGE}' ELSE 'shipping-' || lpad(n::text, 3, '0') END AS name, gen_random_uuid() AS claim
FROM generate_series(0, {GROUPS - 1}) AS n;

INSERT INTO consumer_groups (consumer_group, epoch, claim_id, owner, claimed_at, paused_at, pause_reason)
SELECT name, 1000, claim, 'spark@driver-' || n || ':4711', now() - interval '1 day',
       CASE WHEN n % 50 = 0 THEN now() - interval '1 hour' END, CASE WHEN n % 50 = 0 THEN 'maintenance' END FROM groups;

INSERT INTO heartbeats (claim_id) SELECT claim FROM groups WHERE n % 2 = 0;

INSERT INTO kafka_partitions (consumer_group, topic, partition, next_offset, metadata, epoch, claim_id)
SELECT g.name, t.topic, p, (random() * {END})::bigint, '{{"checked": true}}', 1000, g.claim
FROM groups AS g
JOIN (SELECT 0 AS n, 'payments-' || t AS topic, 1005 AS count FROM generate_series(0, 4) AS t
      UNION ALL
      SELECT n, 'orders-' || lpad(n::text, 3, '0'), 25 FROM groups WHERE n > 0) AS t ON t.n = g.n,
     generate_series(0, t.count - 1) AS p;

INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, key, value,
                          error_class, sqlstate, table_name, constraint_name, error_text, attempts, created_at, reason)
SELECT g.name, CASE g.n WHEN 0 THEN 'payments-' || l % 5 ELSE 'orders-' || lpad(g.n::text, 3, '0') END,
       (l / 5) % 25, l,
       CASE l % 11 WHEN 0 THEN 'replayed' WHEN 1 THEN 'discarded' WHEN 2 THEN 'requested' ELSE 'dead' END,
       (ARRAY['refused', 'raised', 'rejected'])[1 + l % 3], 'kept', convert_to('key ' || l, 'UTF8'),
       convert_to(repeat('value ', 40), 'UTF8'), 'RowsRefused', '23514', 'public.results',
       CASE WHEN l < 5 THEN 'rare' ELSE 'positive_' || l % 60 END, 'a row violates it', 2,
       now() - interval '30 days' + l * interval '2 seconds', CASE WHEN l % 11 < 3 THEN 'ticket 17' END
FROM generate_series(0, 999999) AS l JOIN groups AS g ON g.n = CASE WHEN l % 10 = 9 THEN 1 + l / 10 % 199 ELSE 0 END;

INSERT INTO offset_history (consumer_group, topic, partition, event, from_offset, to_offset, epoch, claim_id, actor,
                            reason)
SELECT g.name, CASE g.n WHEN 0 THEN 'payments-' || h % 5 ELSE 'orders-' || lpad(g.n::text, 3, '0') END, h / 5 % 25,
       CASE WHEN h < 3 THEN 'pause' WHEN h % 20 = 0 THEN 'reset' ELSE 'adopt' END, 0, h, 1, g.claim,
       'ana@laptop:4711', 'ticket 17: ' || repeat('wrong rates ', 5)
FROM generate_series(0, 99999) AS h JOIN groups AS g ON g.n = CASE WHEN h % 5 < 3 THEN 0 ELSE 1 + h % 199 END;

INSERT INTO job_runs (consumer_group, epoch, claim_id, owner, topics, versions, started_at, seen_at, ended_at, ending,
                      phase, counters, memory_bytes)
SELECT g.name, e, CASE e WHEN 1000 THEN g.claim ELSE gen_random_uuid() END, 'spark@driver:4711', ARRAY['payments-0'],
       '{{"spark": "3.5.5", "python": "3.11"}}', now() - (1001 - e) * interval '1 hour',
       now() - (1000 - e) * interval '1 hour', CASE WHEN e < 1000 THEN now() - (1000 - e) * interval '1 hour' END,
       CASE WHEN e < 1000 THEN (ARRAY['closed', 'failed', 'fenced'])[1 + e % 3] END, 'idle',
       '{{"written": 4000, "rows": 900000, "batch_milliseconds": 700000}}', 300000000
FROM groups AS g, generate_series(CASE g.n WHEN 0 THEN 1 ELSE 1000 END, 1000) AS e;

INSERT INTO job_errors (consumer_group, epoch, source, error_class, error_text, sqlstate, topic, partition, batch_id,
                        ranges, times)
SELECT g.name, 1000, (ARRAY['batch', 'mirror'])[1 + e % 2], 'RowsRefused', repeat('a row violates it ', 10), '23514',
       'payments-0', e % 25, e, 'payments-0 [30, 40)', 3
FROM generate_series(1, 1199) AS e JOIN groups AS g ON g.n = CASE WHEN e > 199 THEN 0 ELSE e END;
"""  # noqa: S608 - constants alone

PLANT_SAMPLES: Final = """
INSERT INTO samples (consumer_group, resolution, slot, at, stored, log_end, lag, lag_seconds, headroom, batches,
                     batch_seconds, rows, memory, epoch)
SELECT g.name, {seconds}, mod(CAST(floor(extract(epoch FROM t.at) / {seconds}) AS bigint), {slots}), t.at,
       10000000 - s * 100, 10001000 - s * 100, (random() * 100000)::bigint, random() * 600, 1000, 10000 - s,
       20000 - s * 1.5, 1000000 - s * 90, 300000000, 1000
FROM groups AS g, generate_series(0, {slots} - 1) AS s,
     LATERAL (SELECT clock_timestamp() - s * interval '{seconds} s' AS at) AS t
ON CONFLICT DO NOTHING
"""

TOUCH_HALF: Final = "UPDATE dead_letters SET reason = 'touched' WHERE record_offset % 2 = 0"


@dataclass
class Page:
    """An address, and what was measured of it: in each round, seconds up to the last byte.

    :param every: it is asked for in each turn, or in one of so many.
    """

    name: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict[str, object])
    every: int = 1
    seconds: list[float] = field(default_factory=list[float])
    size: int = 0

    @property
    def address(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def p95(self) -> float:
        """Of the seconds."""
        return quantiles(self.seconds, n=20)[-1]

    @property
    def figures(self) -> tuple[float, ...]:
        """The fastest, the median, p95 and the slowest."""
        return min(self.seconds), median(self.seconds), self.p95, max(self.seconds)


def pages(last: LetterCursor) -> list[Page]:
    """Every page, with what can be asked of it.

    :param last: the letter before those of the list's last page.
    """
    large = {"group": LARGE}
    error = {"cause": "refused", "error_class": "RowsRefused", "sqlstate": "23514", "table": "public.results"}
    place = {**large, "topic": "payments-0", "partition": 0}
    rare = {**error, "constraint": "rare", "column": ""}
    common = {**error, "column": ""}
    return [
        *(Page(f"groups, {span}", "/", {"span": span}) for span in SPANS),
        *(Page(f"groups by {sort}", "/", {"sort": sort}) for sort in ("group", "lag", "behind", "advance", "letters")),
        Page("groups, searched", "/", {"q": "shipping-1"}),
        Page("groups, last page", "/", {"page": 4}),
        *(Page(f"group, {span}", "/group", {**large, "span": span}) for span in SPANS),
        Page("group by number, page 50", "/group", {**large, "sort": "number", "page": 50}),
        Page("group, lagging of a topic", "/group", {**large, "topic": "payments-3", "lagging": 1}),
        Page("group, small", "/group", {"group": SMALL[0]}),
        Page("partition", "/partition", place),
        Page("runs", "/runs", large),
        Page("runs, last page", "/runs", {**large, "page": 100, "errors": 20}),
        Page("runs, one source", "/runs", {**large, "source": "mirror"}),
        Page("letters", "/letters", large),
        Page("letters, all", "/letters", {**large, "state": "all"}),
        Page("letters, last page", "/letters", {**large, "after": last}),
        Page("letters, common error", "/letters", {**large, **common}),
        Page("letters, rare error", "/letters", {**large, **rare}),
        Page("letters, partition", "/letters", {**large, "topic": "payments-0", "partition": 3}),
        Page("letter", "/letter", {**large, "topic": "payments-0", "partition": 1, "offset": 880}),
        Page("history", "/history", large),
        Page("history, one event", "/history", {**large, "event": "reset"}),
        Page("history, rare event", "/history", {**large, "event": "pause"}),
        Page("history, last page", "/history", {**large, "before": 50}),
        Page("store", "/store"),
        Page("login", "/login"),
        *(Page(f"form: {action}", f"/actions/{action}", large) for action in ("reset", "pause", "replay", "discard")),
        Page("plan: reset", "/actions/reset/plan", {**large, "to": "earliest"}),
        Page("plan: pause", "/actions/pause/plan", {**large, "until": "PT1H"}),
        Page("plan: resume", "/actions/resume/plan", large),
        Page("plan: replay, common error", "/actions/replay/plan", {**large, **common}, every=10),
        Page("plan: replay, rare error", "/actions/replay/plan", {**large, **rare}, every=10),
        Page("plan: discard, common error", "/actions/discard/plan", {**large, **common}, every=10),
        *(Page(f"static: {name}", f"/static/{name}") for name in ("style.css", "refresh.js", "charts.js")),
        Page("static: uPlot", "/static/uplot/uPlot.iife.min.js"),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100, help="of each page, in a round")
    parser.add_argument("--snapshots", type=int, default=300)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    with PostgresServer(settings={"autovacuum": "off", "shared_buffers": "256MB"}) as postgres:
        reader = plant(postgres.url)
        with process(reader, postgres.url) as dashboard:
            dashboard.first_requests()
            for number in range(options.rounds):
                dashboard.round(f"round {number + 1}", options.requests)
            dashboard.print_pages()
            dashboard.snapshots(options.snapshots, "vacuumed")
            dashboard.paint()
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(TOUCH_HALF.encode())
            dashboard.snapshots(10, "half of the letters updated")
            dashboard.round("half of the letters updated", options.requests)
            dashboard.print_pages(only_slowest=True)


def plant(url: str) -> str:
    """Fill the database; return its address for the dashboard's role."""
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PLANT.encode())
        for ring in RINGS:
            connection.execute(PLANT_SAMPLES.format(seconds=ring.seconds, slots=ring.slots).encode())
        connection.execute(b"VACUUM ANALYZE")
        connection.execute(b"CREATE ROLE reader LOGIN")
        for statement in grant_dashboard("reader", schema="public"):
            connection.execute(statement.encode())
    return url.replace("postgres@", "reader@")


def serve(reader: str, decider: str) -> None:
    """Be the dashboard. For each number that is read, take so many snapshots at once, and print how long they took."""
    now = int(time.time() * 1000)
    logs = {name: TopicLog(None, dict.fromkeys(range(count), Watermarks(0, END))) for name, count in TOPICS.items()}
    copies = {TopicPartition(name, 0): CommittedOffset(1) for name in TOPICS}
    broker = StaticBroker(BrokerView("cluster", logs, copies))
    chosen = random.Random(1)  # noqa: S311 - no secret
    for name, count in TOPICS.items():
        for number in range(count):
            ages = sorted(chosen.randrange(3_600_000) for _ in range(5))
            broker.records[TopicPartition(name, number)] = dict(
                zip(range(0, END, 200), (now - age for age in ages[::-1]), strict=True)
            )
    with OffsetStore.connect(reader) as store, OffsetStore.connect(decider) as actions:
        server = DashboardServer(store, broker, DashboardSettings(port=0), actions=Deciding(actions, broker))
        with as_main_work(), server:
            while server.snapshots.latest().lag is None:
                time.sleep(0.1)
            print(server.url, flush=True)
            for line in sys.stdin:
                began = time.perf_counter()
                for _ in range(int(line)):
                    server.snapshots.take()
                print((time.perf_counter() - began) / int(line), flush=True)


@contextmanager
def process(reader: str, decider: str) -> Generator[Measured]:
    """Start the dashboard."""
    with psycopg.connect(decider, autocommit=True) as connection:
        row = connection.execute(
            b"SELECT created_at, topic, partition, record_offset, topic_id FROM dead_letters"
            b" WHERE consumer_group = 'billing' AND state IN ('dead', 'requested')"
            b" ORDER BY created_at, topic, partition, record_offset OFFSET 50 LIMIT 1"
        ).fetchone()
    assert row is not None
    command = [sys.executable, "-m", "benchmarks.dashboard", "--serve", reader, decider]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        try:
            url = started.stdout.readline().strip()
            yield Measured(url, started.pid, started.stdin, started.stdout, pages(LetterCursor(*row)))
        finally:
            started.stdin.close()


@dataclass
class Measured:
    """The dashboard's process, and what is measured of it."""

    url: str
    pid: int
    orders: IO[str]
    answers: IO[str]
    pages: list[Page]
    best: float = float("inf")
    shown: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def first_requests(self) -> None:
        """The first of each page, which the process has to make ready."""
        connection = self._connect()
        took = [(self._ask(connection, page), page.name) for page in self.pages]
        slowest = sorted(took, reverse=True)[:3]
        print("first requests: " + ", ".join(f"{name} {seconds * 1000:.0f} ms" for seconds, name in slowest))
        print(f"memory {self.memory()}", flush=True)

    def round(self, name: str, requests: int) -> None:
        """Ask for each page, in turn, and keep the figures of the quietest round."""
        connection, load, used = self._connect(), os.getloadavg()[0], self.cpu_seconds()
        for page in self.pages:
            page.seconds = []
        for turn in range(requests):
            for page in self.pages:
                if turn % page.every == 0:
                    page.seconds.append(self._ask(connection, page))
        connection.close()
        used = (self.cpu_seconds() - used) / sum(len(page.seconds) for page in self.pages)
        middle = sum(median(page.seconds) for page in self.pages) / len(self.pages)
        slowest = max(self.pages, key=lambda page: page.p95)
        print(
            f"{name}: load {load:.1f} to {os.getloadavg()[0]:.1f}, mean of the medians {middle * 1000:.0f} ms, "
            f"CPU of the process {used * 1000:.0f} ms a page, "
            f"largest p95 {slowest.p95 * 1000:.0f} ms ({slowest.name}); memory {self.memory()}",
            flush=True,
        )
        if middle < self.best:
            self.best = middle
            self.shown = {page.name: page.figures for page in self.pages}

    def print_pages(self, *, only_slowest: bool = False) -> None:
        """Print the figures of the quietest round, or where the last one is slower than 150 ms."""
        if only_slowest:
            slow = (page for page in self.pages if page.p95 > 0.15)  # noqa: PLR2004 - the requirement
            self.shown = {page.name: page.figures for page in slow}
        print(f"{'page (milliseconds)':32} {'min':>6} {'p50':>6} {'p95':>6} {'max':>6} {'kB':>6}")
        for page in self.pages:
            if page.name in self.shown:
                figures = " ".join(f"{seconds * 1000:6.1f}" for seconds in self.shown[page.name])
                print(f"{page.name:32} {figures} {page.size / 1000:6.1f}")
        sys.stdout.flush()

    def snapshots(self, count: int, name: str) -> None:
        """Let it take snapshots, one after the other, and ask for a page meanwhile."""
        connection, page, took = self._connect(), self.pages[0], list[float]()
        self.orders.write(f"{count}\n")
        self.orders.flush()
        os.set_blocking(self.answers.fileno(), False)
        while not (answer := self.answers.readline()):
            took.append(self._ask(connection, page))
        os.set_blocking(self.answers.fileno(), True)
        print(
            f"{count} snapshots, {name}: {float(answer) * 1000:.0f} ms each; {page.name} meanwhile: "
            f"p50 {median(took) * 1000:.0f} ms, p95 {quantiles(took, n=20)[-1] * 1000:.0f} ms; memory {self.memory()}",
            flush=True,
        )

    def paint(self) -> None:
        """When Chromium first paints the largest pages, after the navigation began: each in a context of its own."""
        with browse() as browser:
            for page in sorted(self.pages, key=lambda one: -one.size)[:6]:
                if page.path.startswith("/static"):
                    continue
                took: list[float] = []
                for _ in range(PAINTS):
                    context = browser.new_context()
                    tab = context.new_page()
                    tab.goto(self.url + page.address[1:])
                    while not (entries := tab.evaluate(PAINTED)):  # the pages' policy forbids Playwright's own wait
                        time.sleep(0.05)
                    took.append(entries[0])
                    context.close()
                print(
                    f"first paint of {page.name}: median {median(took):.0f} ms, slowest {max(took):.0f} ms", flush=True
                )

    def cpu_seconds(self) -> float:
        """What the process has used, in user and system mode: on a busy machine, this says more than the clock."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> str:
        """What is resident now, and was at most."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        now, most = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return f"{now:.0f} MB, at most {most:.0f} MB"

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(urlsplit(self.url).netloc, timeout=60)

    def _ask(self, connection: HTTPConnection, page: Page) -> float:
        """Ask for the page as a browser does; return the seconds up to its last byte."""
        headers = {"Accept-Encoding": "gzip", "Accept": "text/html"}
        began = time.perf_counter()
        connection.request("GET", page.address, headers=headers)
        answer = connection.getresponse()
        read = answer.read()
        seconds = time.perf_counter() - began
        assert answer.status == 200, (page.name, answer.status, unescape(str(read[:300])))  # noqa: PLR2004 - HTTP's
        page.size = max(page.size, len(read))
        return seconds


if __name__ == "__main__":
    main()
