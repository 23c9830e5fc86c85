"""The roles of a deploy: a migrator that owns the tables, the job's role with the printed grants, and a reader."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner

from offsetstore import Claim, LetterError, LetterKey, OffsetRange, OffsetStore, StartPolicy
from offsetstore.cli.commands import cli
from offsetstore.errors import MissingPrivilege, StaleClaim, StoreMoved, TransactionLost
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.schema import metadata, quoted
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.store import heartbeat
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker
from tests.integration.transacting import GROUP, P0, P1, lock, process
from tests.support.waiting import wait_until

FORBIDDEN = (
    "CREATE TABLE ours (id bigint)",
    "CREATE SCHEMA theirs",
    "CREATE INDEX ON kafka_partitions (topic)",
    "ALTER TABLE kafka_partitions ADD COLUMN mine text",
    "ALTER TABLE kafka_partitions OWNER TO CURRENT_USER",
    "DELETE FROM kafka_partitions",
    "DELETE FROM dead_letters",
    "DELETE FROM offset_history",
    "UPDATE offset_history SET reason = ''",
    "SELECT value FROM outbox",
    "SELECT key FROM outbox_refused",
    "DELETE FROM outbox_refused",
    "DELETE FROM outbox",
    "INSERT INTO outbox (consumer_group, topic, created_at) VALUES ('billing', 'events', '2025-03-01')",
    "SELECT token FROM outbox_relays",
    "UPDATE offsetstore_version SET version_num = '9999'",
    "UPDATE store_identity SET store_id = '00000000-0000-0000-0000-000000000000'",
    "UPDATE store_identity SET home = NULL",
    *(f"{verb} {table}" for table in metadata.tables for verb in ("DROP TABLE", "TRUNCATE")),
)


def offsetstore(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2}, end=100)


@dataclass(frozen=True)
class Deploy:
    """A database whose owner has migrated it; none of the roles is a superuser."""

    url: str
    schema: str

    def role(self, kind: str) -> str:
        return f"{kind} of {self.url.rpartition('/')[2]}"

    def connect(self, kind: str) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(self.url, user=self.role(kind), autocommit=True)
        connection.execute(f"SET search_path TO {quoted(self.schema)}".encode())
        return connection

    def url_of(self, kind: str) -> str:
        return self.url.replace("postgres@", f"{self.role(kind).replace(' ', '%20')}@")

    def store(self, kind: str = "job") -> OffsetStore:
        return OffsetStore.connect(self.url_of(kind), schema=self.schema)

    def run(self, kind: str, sql: str) -> None:
        with self.connect(kind) as connection:
            connection.execute(sql.encode())


def is_refused(deploy: Deploy, kind: str, statement: str) -> bool:
    """Whether PostgreSQL says that the role may not."""
    try:
        deploy.run(kind, statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


@pytest.fixture(params=['Our "offsets"'])
def deploy(
    offsetstore_empty_database: str, offsetstore_postgres: PostgresServer, request: pytest.FixtureRequest
) -> Iterator[Deploy]:
    made = Deploy(offsetstore_empty_database, str(request.param))
    database = made.url.rpartition("/")[2]
    migrator, job, reader = (quoted(made.role(kind)) for kind in ("migrator", "job", "reader"))
    offsetstore_postgres.sql(
        f"""
        CREATE ROLE {migrator} LOGIN; CREATE ROLE {job} LOGIN; CREATE ROLE {reader} LOGIN;
        GRANT {job} TO {migrator};
        GRANT CREATE ON DATABASE {database} TO {migrator};
        GRANT CREATE ON SCHEMA public TO {migrator};
        """,
        database=database,
    )
    offsetstore("migrate", "--url", made.url_of("migrator"), "--schema", made.schema)
    printed = offsetstore(
        "grants", "--role", made.role("job"), "--dashboard-role", made.role("reader"), "--schema", made.schema
    )
    for _ in range(2):  # as after the next migration
        made.run("migrator", printed)
    yield made
    offsetstore_postgres.sql(
        f"DROP OWNED BY {migrator}, {job}, {reader}; DROP ROLE {migrator}, {job}, {reader}", database=database
    )


@pytest.mark.behaviour("OPS-8")
@pytest.mark.parametrize("deploy", ["public", 'Our "offsets" :x %s'], indirect=True)
def test_the_whole_store_works_with_the_printed_grants(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.05)
    results = f"{quoted(deploy.schema)}.results"
    deploy.run("migrator", f"CREATE TABLE {results} (record bigint); GRANT INSERT ON {results} TO PUBLIC")
    path = quote(quoted(deploy.schema).replace(" ", "\\ "))
    url = f"{deploy.url_of('job')}?options=-c%20search_path%3D{path}"
    with OffsetStore.connect(url, schema=deploy.schema) as store, deploy.connect("reader") as reader:
        first = store.claim(GROUP, broker())
        process(store, first, P0, P1, range_=OffsetRange(0, 3))
        beat = reader.execute("SELECT beat_at FROM heartbeats").fetchall()
        wait_until(lambda: reader.execute("SELECT beat_at FROM heartbeats").fetchall() != beat)

        second = store.claim(GROUP, broker())
        with pytest.raises(StaleClaim):
            process(store, first, P0, range_=OffsetRange(3, 4))
        process(store, second, P0, range_=OffsetRange(1, 5))  # cropped
        with store.transaction(second) as tx:
            tx.lock({})
            tx.produce("events", None, b"one", [("trace", b"7f3a")])

        assert store.offsets(GROUP)[P0].next_offset == 5
        assert [event.event for event in store.history(GROUP)].count("claim") == 2
        assert {event.db_role for event in store.history(GROUP)} == {deploy.role("job")}
        wait_until(lambda: [run.state for run in store.runs(GROUP)] == ["fenced", "live"])
        assert [error.error_class for error in store.errors(GROUP)] == []
        owner = store.owner(GROUP)
        assert owner is not None
        assert owner.token == second.token
        store.reset(GROUP, {P0: 7}, reason="read again", takeover="fence")
        store.rename_group(GROUP, "invoicing", reason="its new name")
        assert {tp: row.next_offset for tp, row in store.offsets("invoicing").items()} == {P0: 7, P1: 3}
        assert store.offsets(GROUP) == {}


@pytest.mark.behaviour("OPS-8", "CONS-3")
def test_a_takeover_by_force_and_a_fleet_need_no_more(deploy: Deploy) -> None:
    with deploy.store() as store, deploy.store() as other:
        stale = store.claim("another", topics=["payments"])
        with pytest.raises(TransactionLost), store.transaction(stale) as tx:  # noqa: PT012 - what is lost, and how
            left = lock(tx, P0, range_=OffsetRange(0, 3))  # its row is made here
            other.claim("another", broker(), takeover_timeout=0.3)
            tx.advance(left)
        assert {row.next_offset for row in other.offsets("another").values()} == {0}

        request = ClaimRequest(GROUP, broker(), ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
        first, second = join(store, request), join(store, request)
        first.assign([P0, P1])
        with store.transaction(first) as tx:
            tx.advance(lock(tx, P0, P1, range_=OffsetRange(0, 3)))
        second.assign([P1])
        with store.transaction(second) as tx:
            tx.advance(lock(tx, P1, range_=OffsetRange(0, 5)))
        second.close()
        first.close()

        assert {tp: row.next_offset for tp, row in store.offsets(GROUP).items()} == {P0: 3, P1: 5}
        with deploy.connect("reader") as reader:
            assert reader.execute("SELECT * FROM group_members").fetchall() == []


@pytest.mark.behaviour("OPS-8", "OPS-3", "DLQ-7", "START-27")
def test_only_the_owner_prunes_letters_deletes_a_group_and_says_which_store_it_is(deploy: Deploy) -> None:
    with deploy.store() as store, deploy.store("migrator") as owner:
        bury(store)
        assert store.request_replay(GROUP, LetterKey(P0, 1), reason="ticket 17").executed
        assert store.discard(GROUP, LetterKey(P0, 1), reason="ticket 17", erase=True).executed
        assert store.prune(GROUP, older_than=timedelta(0), reason="old", dry_run=True).count == 1
        with pytest.raises(MissingPrivilege, match="may not delete dead letters"):
            store.prune(GROUP, older_than=timedelta(0), reason="old")
        assert store.letter_counts(GROUP) == {"discarded": 1}
        assert store.history(GROUP, events=["prune"]) == []
        assert owner.prune(GROUP, older_than=timedelta(0), reason="old").count == 1
        assert owner.letter_counts(GROUP) == {}

        claim = store.claim(GROUP, broker())
        for is_plan in (True, False):
            with pytest.raises(MissingPrivilege, match="may not delete a group") as caught:
                store.delete_group(GROUP, reason="ticket 17", dry_run=is_plan, takeover="fence")
            assert caught.value.found == "no DELETE on kafka_partitions, batch_marks, dead_letters, samples"
        with store.transaction(claim) as tx:
            tx.advance(lock(tx, P0, range_=OffsetRange(4, 7)))
        assert owner.delete_group(GROUP, reason="ticket 17", takeover="fence").offsets == {P0: 7, P1: 0}
        with pytest.raises(StaleClaim), store.transaction(claim) as tx:
            lock(tx, P0, range_=OffsetRange(7, 8))

        assert store.identity().is_compared
        assert store.identity() == owner.identity()
        claim = store.claim("another", broker())
        deploy.run("migrator", "UPDATE store_identity SET home = '1:2'")
        with pytest.raises(StoreMoved):
            store.claim("another", broker())
        for say in (store.moved, store.new_id):
            with pytest.raises(MissingPrivilege, match="may not change which store this is; nothing was written"):
                say(reason="ticket 17")
        with store.transaction(claim) as tx:  # who runs goes on
            tx.advance(lock(tx, P0, range_=OffsetRange(0, 3)))
        assert owner.moved(reason="ticket 17").identity.home == store.identity().here
        assert store.claim("another", broker()).token.epoch == 2
        assert owner.new_id(reason="ticket 17").identity.store_id == store.identity().store_id


@pytest.mark.behaviour("START-27", "OPS-8")
def test_a_role_that_may_not_read_which_database_it_is_migrates_and_starts_jobs_all_the_same(
    offsetstore_empty_database: str, offsetstore_postgres: PostgresServer
) -> None:
    """As a provider may have it."""
    name = offsetstore_empty_database.rpartition("/")[2]
    role = f"migrator_{name}"
    offsetstore_postgres.sql(
        f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {name} TO {role}; GRANT CREATE ON SCHEMA public TO {role};"
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
        database=name,
    )
    url = offsetstore_empty_database.replace("postgres@", f"{role}@")
    offsetstore("migrate", "--url", url)
    with OffsetStore.connect(url) as store:
        found = store.identity()
        assert (found.home, found.here, found.is_compared) == (None, None, False)
        with store.transaction(store.claim(GROUP, broker())) as tx:
            tx.advance(lock(tx, P0, range_=OffsetRange(0, 3)))
        with pytest.raises(MissingPrivilege, match=r"may not read which database this is.*GRANT EXECUTE"):
            store.moved(reason="ticket 17")
        assert "a copy of the database is not noticed" in offsetstore("status", "-g", GROUP, "--url", url)
        document = json.loads(offsetstore("status", "-g", GROUP, "--url", url, "--format", "json"))
        assert document["database"] == "unknown"
        assert store.new_id(reason="a copy").identity.store_id != found.store_id
    with OffsetStore.connect(offsetstore_empty_database) as other:
        other.claim(GROUP, broker())  # who may, has nothing to compare with
    offsetstore_postgres.sql(f"DROP OWNED BY {role}; DROP ROLE {role}", database=name)


@pytest.mark.behaviour("START-27")
def test_a_server_without_that_function_has_jobs_all_the_same(
    offsetstore_database: str, offsetstore_postgres: PostgresServer
) -> None:
    """As a service that only speaks PostgreSQL's protocol."""
    name = offsetstore_database.rpartition("/")[2]
    offsetstore_postgres.sql("ALTER FUNCTION pg_control_system() RENAME TO none_such", database=name)
    with OffsetStore.connect(offsetstore_database) as store:
        assert not store.identity().is_compared
        store.claim(GROUP, broker())


@pytest.mark.behaviour("DASH-1", "OPS-8")
def test_a_dashboard_lists_letters_and_reads_none_and_records_samples(deploy: Deploy) -> None:
    with deploy.store() as store:
        bury(store)
    with deploy.store("reader") as dashboard:
        [letter] = dashboard.letters(GROUP).letters
        assert (letter.offset, letter.error.error_class, letter.payload_state) == (1, "ValueError", "kept")
        assert [one.count for one in dashboard.letter_errors(GROUP)] == [1]
        state = dashboard.group_state(GROUP)
        assert state is not None
        assert state.dead_letters == {"dead": 1}
        assert dashboard.lag(None, broker()).store.letters == {GROUP: {"dead": 1}}, "all that the exporter reads"
        with pytest.raises(MissingPrivilege):
            dashboard.letter(GROUP, P0, 1)
        with pytest.raises(MissingPrivilege):
            dashboard.letters(GROUP, contents=True)

        dashboard.record_samples(dashboard.lag(None, broker()))
        lag = dashboard.lag(None, broker())
        dashboard.record_samples(lag)
        kept = dashboard.samples([GROUP], timedelta(hours=1))[GROUP]
        assert kept[-1].at == lag.store.at
        with deploy.store() as store:
            with pytest.raises(MissingPrivilege):
                store.record_samples(lag)
            store.rename_group(GROUP, "invoicing", reason="its new name")
            samples = store.samples([GROUP, "invoicing"], timedelta(hours=1))
            assert samples == {GROUP: [], "invoicing": kept}, "a job's role takes them along"


@pytest.mark.behaviour("OPS-19")
def test_what_the_role_lacks_since_the_last_revision_is_named_before_anyone_is_fenced(deploy: Deploy) -> None:
    job = quoted(deploy.role("job"))
    with deploy.store() as store, deploy.store() as other:
        claim = store.claim(GROUP, broker())
        deploy.run(
            "migrator",
            f"REVOKE DELETE ON failures FROM {job}; REVOKE UPDATE ON kafka_partitions FROM {job};"
            f"GRANT UPDATE (next_offset) ON kafka_partitions TO {job};"
            f"REVOKE INSERT (reason) ON offset_history FROM {job}",
        )
        with pytest.raises(MissingPrivilege, match="no job was fenced") as caught:
            other.claim(GROUP, broker())
        assert caught.value.found == (
            f"role {job} lacks DELETE on failures, UPDATE on kafka_partitions, INSERT on offset_history"
        )
        [_, printed, _] = caught.value.next_step.split("`")
        deploy.run("migrator", offsetstore(*shlex.split(printed)[1:]))
        bury(store, claim)
        other.claim(GROUP, broker())


def bury(store: OffsetStore, claim: Claim | None = None) -> None:
    """Keep offset 1 as a letter."""
    error = LetterError("ValueError", "not a number")
    with store.transaction(claim or store.claim(GROUP, broker())) as tx:
        left = tx.lock({P0: OffsetRange(0, 4)})[P0].remaining
        tx.letters.write([NewLetter(P0, 1, "raised", error, 1, None, Payload(b"k", b"v", None, 0, 0))])
        tx.advance({P0: left})


@pytest.mark.behaviour("OPS-8")
def test_the_jobs_role_has_no_ddl_and_rewrites_no_history(deploy: Deploy) -> None:
    assert [statement for statement in FORBIDDEN if not is_refused(deploy, "job", statement)] == []
