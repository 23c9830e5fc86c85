"""The rights of the job's role, held against the statements it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from offsetstore import relay
from offsetstore.operations import home, names, people, relay_record, samples, stored_letters
from offsetstore.postgres import letters, outbox, runs, statements
from offsetstore.postgres.grants import (
    grant_dashboard,
    grant_outbox,
    grant_relay,
    grant_runtime,
    grant_target,
    privileges,
)
from offsetstore.postgres.schema import metadata

SQL = [
    value
    for module in (statements, letters, outbox, runs, stored_letters, home, names, people, samples)
    for value in vars(module).values()
    if isinstance(value, str) and "{s}" in value
    if value not in {stored_letters.PRUNE_LETTERS, samples.RECORD_SAMPLES}  # the owner's and the dashboard's
    if value != outbox.SET_ASIDE  # the relay's and the owner's
    if value not in {home.SET_IDENTITY, home.GO_ON_WITH_IDS, statements.TAKE_HOME}  # the owner's
]
NEEDS = [
    ("SELECT", r"(?:FROM|JOIN) \{s\}(\w+)"),
    ("INSERT", r"INSERT INTO \{s\}(\w+)"),
    ("UPDATE", r"UPDATE \{s\}(\w+)"),
    ("DELETE", r"DELETE FROM \{s\}(\w+)"),
    ("UPDATE", r"(?s)INSERT INTO \{s\}(\w+)(?=.*DO UPDATE)"),
    ("UPDATE", r"(?s)FROM \{s\}(\w+)(?=.*FOR (?:UPDATE|SHARE))"),
]


def rights(lines: Iterable[str]) -> set[tuple[str, str]]:
    """Each table and privilege that is granted on all of its columns, or on some."""
    found = [re.fullmatch(r'GRANT (.+) ON TABLE "jobs"\."(\w+)" TO ".*"', line) for line in lines]
    return {(one[2], right) for one in found if one for right in re.sub(r" \(.*?\)", "", one[1]).split(", ")}


@pytest.mark.behaviour("OPS-8")
def test_a_relay_s_grants_are_what_its_statements_do() -> None:
    values = [*vars(relay).values(), *vars(relay_record).values()]
    sql = [value for value in values if isinstance(value, str) and "{s}" in value]
    done = {(table, right) for right, pattern in NEEDS for one in sql for table in re.findall(pattern, one)}
    done |= {("outbox_relays", "UPDATE"), ("store_identity", "SELECT"), ("offsetstore_version", "SELECT")}

    granted = rights(grant_relay("relay", schema="jobs"))
    assert granted == done


@pytest.mark.behaviour("OPS-8", "OUT-14")
def test_an_application_may_insert_the_columns_that_its_statement_names_and_nothing_else() -> None:
    [named] = re.findall(r"INSERT INTO \{s\}outbox \(([\w, ]+)\)", outbox.WRITE_OUTBOX)
    columns = ", ".join(f'"{name}"' for name in named.split(", "))
    assert [*grant_outbox("shop", schema="jobs")] == [
        'GRANT USAGE ON SCHEMA "jobs" TO "shop"',
        f'GRANT INSERT ({columns}) ON TABLE "jobs".outbox TO "shop"',
    ]


@pytest.mark.behaviour("OPS-8")
def test_what_the_statements_do_is_granted_and_no_delete_that_none_of_them_needs() -> None:
    done = {(table, right) for right, pattern in NEEDS for sql in SQL for table in re.findall(pattern, sql)}
    granted = {(table, right) for table, given in privileges().items() for right in given}

    assert sorted(done - granted) == []
    assert {one for one in granted if one[1] == "DELETE"} == {one for one in done if one[1] == "DELETE"}
    assert metadata.tables.keys() <= {table for table, _ in rights(grant_runtime("job", schema="jobs"))}
    assert (privileges()["offset_history"], privileges()["store_identity"]) == (("SELECT", "INSERT"), ("SELECT",))


@pytest.mark.behaviour("OPS-8")
def test_the_database_alone_says_when_and_by_which_role_a_line_of_the_history_was_written() -> None:
    lines = [line for line in grant_runtime("job", schema="public") if "offset_history" in line]

    assert [line.partition(" ON ")[0].partition(" (")[0] for line in lines] == ["REVOKE INSERT", "GRANT SELECT, INSERT"]
    hidden = {one.name for one in metadata.tables["offset_history"].columns if f'"{one.name}"' not in lines[1]}
    assert hidden == {"id", "at", "db_role"}


@pytest.mark.behaviour("OPS-8")
def test_a_dashboard_only_reads_but_for_the_samples_and_no_text_that_may_quote_a_record() -> None:
    *lines, last = grant_dashboard("reader", schema="public")
    assert {line.partition(" ON ")[0].partition(" (")[0] for line in lines} == {"GRANT USAGE", "GRANT SELECT"}
    assert last == 'GRANT INSERT, UPDATE ON TABLE "public".samples TO "reader"'
    record, error = {"key", "value", "headers"}, {"error_text", "traceback", "sequence"}
    for table, kept in {"dead_letters": record | error, "outbox": record, "outbox_refused": record}.items():
        [line] = [line for line in lines if f'"{table}"' in line]
        hidden = {one.name for one in metadata.tables[table].columns if f'"{one.name}"' not in line}
        assert hidden == kept, table


@pytest.mark.behaviour("OPS-8")
def test_a_target_s_grants_are_those_of_its_writer() -> None:
    usage, append, of_append = grant_target("job", "app", "orders", upsert=False)
    upsert, of_upsert = grant_target("job", None, "totals", upsert=True)

    assert usage == 'GRANT USAGE ON SCHEMA "app" TO "job"'
    assert append == 'GRANT INSERT ON TABLE "app"."orders" TO "job"'
    assert upsert == 'GRANT SELECT, INSERT, UPDATE ON TABLE "totals" TO "job"'
    assert "relrowsecurity" in of_append, "temporary tables only where COPY is refused"
    assert "relrowsecurity" not in of_upsert


def test_the_names_of_a_target_end_no_literal() -> None:
    *_, block = grant_target("a'b\\$grants$", "s", 't"$grantss$', upsert=False)
    assert block.startswith("DO $grantsss$")
    assert block.endswith("END $grantsss$")
    assert "E'a''b\\\\$grants$'" in block


def test_names_are_quoted() -> None:
    for line in (*grant_runtime('a"; --', schema="Our %s"), *grant_dashboard('a"; --', schema="Our %s")):
        assert line.endswith((' TO "a""; --"', ' FROM "a""; --"'))
        assert '"Our %s"' in line
