"""A role that lacks a privilege is told which one, and the command that the error prints mends it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from sqlalchemy import MetaData, Table

from offsetstore import Append, OffsetRange, OffsetStore, Transaction, Upsert
from offsetstore.cli.commands import cli
from offsetstore.errors import MissingPrivilege, SinkError
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, lock
from tests.integration.writers.writing import batch

ORDERS, GUARDED = Append("app.orders"), Append("app.guarded")
TOTALS = Upsert("app.totals", key=["n"], add=["total"])
ROW, TOTAL = batch({"n": [1]}), batch({"n": [1], "total": [2]})


@dataclass
class Role:
    """A role that has what `offsetstore grants` prints, in a database of its own."""

    name: str
    url: str
    owner: psycopg.Connection[Any]

    def run(self, statement: str) -> None:
        self.owner.execute(statement.replace("{role}", f'"{self.name}"').encode())

    def grant(self, command: str) -> None:
        """Run in psql what the command prints."""
        program, *arguments = shlex.split(command)
        printed = CliRunner().invoke(cli, arguments)
        assert (program, printed.exit_code) == ("offsetstore", 0), printed.output
        self.owner.execute(printed.stdout.encode())

    def job(
        self, writer: Append | Upsert = ORDERS, rows: pa.RecordBatch = ROW, *, steps: tuple[str, ...] = ("write",)
    ) -> None:
        """A claim, and the check or one batch, or both."""

        def work(tx: Transaction) -> None:
            left = lock(tx, P0, range_=OffsetRange(0, 3))
            if left:
                writer.write(tx, [rows])
                tx.advance(left)

        broker = StaticBroker.with_topics({"payments": 1}, end=100)
        with OffsetStore.connect(self.url, schema="public") as store, store.claim(GROUP, broker) as claim:
            if "check" in steps:  # as the sink does it
                claim.read(lambda session: writer.check(session.connection, rows.schema))
            if "write" in steps:
                store.run(claim, work)


@pytest.fixture
def role(offsetstore_database: str, query: Query) -> Iterator[Role]:
    [(database,)] = query("SELECT current_database()")
    name = f"job of {database}"
    url = offsetstore_database.replace("postgres@", f"{name.replace(' ', '%20')}@")
    with psycopg.connect(offsetstore_database, autocommit=True) as owner:
        made = Role(name, url, owner)
        made.run(
            "CREATE ROLE {role} LOGIN; REVOKE USAGE ON SCHEMA public FROM PUBLIC;"
            f'REVOKE TEMPORARY ON DATABASE "{database}" FROM PUBLIC; CREATE SCHEMA app;'
            "CREATE TABLE app.orders (id bigserial, n bigint); CREATE TABLE app.guarded (id bigserial, n bigint);"
            "ALTER TABLE app.guarded ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY all_rows ON app.guarded WITH CHECK (true);"
            "CREATE TABLE app.totals (n bigint PRIMARY KEY, total bigint)"
        )
        made.grant(
            f"offsetstore grants --role {shlex.quote(name)} --append app.orders --append app.guarded "
            "--upsert app.totals"
        )
        yield made
        made.run("DROP OWNED BY {role}; DROP ROLE {role}")


OURS = (
    "REVOKE USAGE ON SCHEMA public FROM {role}",
    "REVOKE SELECT ON offsetstore_version FROM {role}",
    "REVOKE SELECT ON store_identity FROM {role}",
    "REVOKE UPDATE ON consumer_groups FROM {role}",
    "REVOKE INSERT ON kafka_partitions FROM {role}",
    "REVOKE UPDATE ON kafka_partitions FROM {role}",
    "REVOKE INSERT ON offset_history FROM {role}; GRANT INSERT (epoch) ON offset_history TO {role}",
    "REVOKE ALL ON heartbeats FROM {role}",
    "REVOKE SELECT ON dead_letters FROM {role}",
)


@pytest.mark.behaviour("OPS-8", "SINK-25")
def test_what_is_missing_on_our_tables_is_told_with_the_command_that_grants_it(role: Role) -> None:
    for missing in OURS:
        role.run(missing)
        with pytest.raises(MissingPrivilege, match=r"permission denied for|lacks") as caught:
            role.job()
        assert "can't be reached" not in str(caught.value)
        [command] = re.findall(r"`(.*)`", caught.value.next_step)
        assert command == f"offsetstore grants --role {shlex.quote(role.name)}"
        role.grant(command)
    role.job()
    assert role.owner.execute("SELECT n FROM app.orders").fetchall() == [(1,)]


OTHER_COLUMNS = "REVOKE INSERT ON app.orders FROM {role}; GRANT UPDATE, INSERT (id) ON app.orders TO {role}"
TARGETS: dict[str, tuple[Append | Upsert, pa.RecordBatch, str]] = {
    "schema": (ORDERS, ROW, "REVOKE USAGE ON SCHEMA app FROM {role}"),
    "table": (ORDERS, ROW, "REVOKE INSERT ON app.orders FROM {role}"),
    "column": (ORDERS, ROW, "REVOKE INSERT ON app.orders FROM {role}; GRANT INSERT (n) ON app.orders TO {role}"),
    "other columns": (ORDERS, ROW, OTHER_COLUMNS),
    "sequence": (ORDERS, ROW, "REVOKE USAGE ON SEQUENCE app.orders_id_seq FROM {role}"),
    "update": (TOTALS, TOTAL, "REVOKE UPDATE ON app.totals FROM {role}"),
    "select": (TOTALS, TOTAL, "REVOKE SELECT ON app.totals FROM {role}"),
    "temporary": (TOTALS, TOTAL, 'REVOKE TEMPORARY ON DATABASE "{database}" FROM {role}'),
    "temporary, with policies": (GUARDED, ROW, 'REVOKE TEMPORARY ON DATABASE "{database}" FROM {role}'),
}


@pytest.mark.behaviour("OPS-8", "SINK-24", "SINK-25")
@pytest.mark.parametrize("missing", TARGETS)
def test_what_is_missing_on_a_target_is_told_before_any_row_with_the_command_that_grants_it(
    role: Role, missing: str
) -> None:
    writer, rows, revoke = TARGETS[missing]
    role.run(revoke.replace("{database}", role.owner.info.dbname))
    option = "--upsert" if isinstance(writer, Upsert) else "--append"
    command = f"offsetstore grants --role {shlex.quote(role.name)} {option} {writer.table}"
    for step in ("check", "write"):
        lacking = r"permission denied|no (USAGE|INSERT|UPDATE|SELECT|TEMPORARY)"
        with pytest.raises(MissingPrivilege, match=lacking) as caught:
            role.job(writer, rows, steps=(step,))
        assert re.findall(r"`(.*)`", caught.value.next_step) == [command]
        if (missing, step) == ("column", "check"):
            assert "no INSERT on the table, only on its columns; it is locked while" in str(caught.value)
    role.grant(command)
    role.job(writer, rows, steps=("check", "write"))
    assert role.owner.execute(f"SELECT n FROM {writer.table}".encode()).fetchall() == [(1,)]


DEFAULTS = {
    "a function that has the right itself": "app.next_id('app.numbers')",
    "a value that may be read": "coalesce(pg_sequence_last_value('app.numbers'), 0)",
}


@pytest.mark.behaviour("OPS-8")
@pytest.mark.parametrize("default", DEFAULTS)
def test_a_default_that_needs_no_usage_of_its_sequence_is_not_refused(role: Role, default: str) -> None:
    role.run(
        "CREATE SEQUENCE app.numbers; GRANT SELECT ON SEQUENCE app.numbers TO {role};"
        "CREATE FUNCTION app.next_id(regclass) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT nextval($1)';"
        f"ALTER TABLE app.orders ALTER id SET DEFAULT {DEFAULTS[default]}"
    )
    role.job(steps=("check", "write"))
    assert role.owner.execute("SELECT n FROM app.orders").fetchall() == [(1,)]


@pytest.mark.behaviour("OPS-8")
def test_no_command_is_printed_that_could_not_name_the_table(role: Role) -> None:
    role.run('CREATE TABLE app."a.b" (n bigint)')
    with pytest.raises(MissingPrivilege) as caught:
        role.job(Append(Table("a.b", MetaData(), schema="app")))
    assert caught.value.next_step == MissingPrivilege.default_next_step


@pytest.mark.behaviour("OPS-8")
def test_what_a_trigger_of_the_database_refuses_is_no_missing_grant(role: Role) -> None:
    role.run(
        "CREATE FUNCTION app.veto() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE insufficient_privilege; END $$;"
        "CREATE EVENT TRIGGER veto ON ddl_command_start WHEN TAG IN ('CREATE TABLE AS') EXECUTE FUNCTION app.veto()"
    )
    with pytest.raises(SinkError, match="raised by a function or trigger"):
        role.job(TOTALS, TOTAL)


@pytest.mark.behaviour("OPS-8")
def test_the_role_that_is_named_is_the_one_that_lacks_it_and_the_schema_the_store_s(role: Role, query: Query) -> None:
    """A login role may act as another one."""
    role.run("ALTER SCHEMA public RENAME TO offsets; GRANT USAGE ON SCHEMA offsets TO {role}")
    query(f'CREATE ROLE "login of {role.name}" LOGIN; GRANT "{role.name}" TO "login of {role.name}"')
    url = role.url.replace("//job", "//login%20of%20job") + f"?options=-c%20role%3D{role.name.replace(' ', '%5C%20')}"
    role.run("REVOKE UPDATE ON offsets.consumer_groups FROM {role}")
    try:
        with OffsetStore.connect(url, schema="offsets") as store, pytest.raises(MissingPrivilege) as caught:
            store.claim(GROUP, topics=["payments"])
    finally:
        query(f'DROP ROLE "login of {role.name}"')
    assert f"`offsetstore grants --role '{role.name}' --schema offsets`" in caught.value.next_step
