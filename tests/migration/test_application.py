"""An application with an Alembic of its own, whose deploy brings our tables along."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.operations import ops
from alembic.runtime.migration import MigrationContext
from sqlalchemy import BigInteger, Column, MetaData, Table

from offsetstore import OffsetStore
from offsetstore.errors import ConfigurationError
from offsetstore.postgres.migrate import OURS, exclude
from tests.migration.conftest import ROOT, shape, tables

ENV = """
from alembic import context
from sqlalchemy import NullPool, create_engine

import offsetstore.migrations
from offsetstore.postgres.migrate import exclude

assert offsetstore.migrations.exclude is exclude
shop = context.config.attributes["shop"]
engine = create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
with engine.connect() as connection:
    if shop.in_env == "before":
        with connection.begin():
            offsetstore.migrations.upgrade(connection, schema=shop.schema)
    context.configure(
        connection=connection,
        target_metadata=shop.models(),
        version_table="shop_version",
        include_schemas=shop.include_schemas,
        include_name=shop.include_name,
        transaction_per_migration=shop.transaction_per_migration,
    )
    with context.begin_transaction():
        if shop.in_env == "inside":
            offsetstore.migrations.upgrade(connection, schema=shop.schema)
        context.run_migrations()
"""
SCRIPT = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

from alembic import op
import sqlalchemy as sa

def upgrade():
    ${upgrades or "pass"}

def downgrade():
    ${downgrades or "pass"}
"""
# What the application of docs/alembic.md has above the page's block.
ABOVE = """
from alembic import context
from sqlalchemy import NullPool, create_engine

shop = context.config.attributes["shop"]
connectable = create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
target_metadata = shop.models()
"""
BY_REVISION = """
revision = "shop1"
down_revision = None

import sqlalchemy as sa
from alembic import context, op

import offsetstore.migrations

def upgrade():
    op.create_table("before", sa.Column("id", sa.BigInteger))
    offsetstore.migrations.upgrade(op.get_bind())
    op.create_table("after", sa.Column("id", sa.BigInteger))
    assert context.config.attributes["shop"]
"""


@dataclass
class Shop:
    """The application: its models are one table, ``public.payments``, and more if a test wants them."""

    path: Path
    url: str
    include_schemas: bool = False
    include_name: Any = field(default_factory=exclude)
    schema: str | None = None
    in_env: Literal["inside", "before", "no"] = "inside"
    transaction_per_migration: bool = False
    more_models: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        made = Config()
        made.set_main_option("script_location", str(self.path))
        made.attributes["shop"] = self
        return made

    def models(self) -> MetaData:
        metadata = MetaData()
        for name in ("payments", *self.more_models):
            schema, _, table = name.rpartition(".")
            Table(table, metadata, Column("id", BigInteger, primary_key=True), schema=schema or None)
        return metadata

    def upgrade(self) -> None:
        command.upgrade(self.config, "head")

    def autogenerate(self) -> list[tuple[Any, ...]]:
        """What ``alembic revision --autogenerate`` writes into the new revision, all others being applied."""
        self.upgrade()
        found: list[Any] = []

        def look(_context: MigrationContext, _revision: object, directives: list[Any]) -> None:
            assert isinstance(directives[0], ops.MigrationScript)
            assert directives[0].upgrade_ops is not None
            found.extend(directives[0].upgrade_ops.as_diffs())

        command.revision(self.config, autogenerate=True, process_revision_directives=look)
        return found


@pytest.fixture
def shop(tmp_path: Path, offsetstore_empty_database: str) -> Shop:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "script.py.mako").write_text(SCRIPT)
    return Shop(tmp_path, offsetstore_empty_database)


def names(diffs: list[tuple[Any, ...]]) -> set[str]:
    return {diff[1].name for diff in diffs}


def deploy(shop: Shop) -> None:
    """Its first revision, generated and applied, and with it our tables."""
    assert [kind for kind, *_ in shop.autogenerate()] == ["add_table"]
    shop.upgrade()
    assert {"payments", "shop_version"} <= tables(shop.url)


@pytest.mark.behaviour("OPS-9")
@pytest.mark.parametrize(
    ("schema", "include_schemas"), [(None, True), (None, False), ("jobs", True), ("jobs", False), ("public", True)]
)
def test_our_tables_come_with_its_upgrade_and_its_autogenerate_leaves_them_alone(
    shop: Shop, offsetstore_database: str, schema: str | None, *, include_schemas: bool
) -> None:
    shop.include_schemas, shop.schema, shop.include_name = include_schemas, schema, exclude(schema=schema)

    deploy(shop)

    OffsetStore.connect(shop.url, schema=schema).close()
    if schema == "jobs":
        assert shape(shop.url, "jobs") == shape(offsetstore_database)
    assert shop.autogenerate() == []


def test_the_env_py_of_the_page_brings_them_and_leaves_them_alone(shop: Shop) -> None:
    """docs/alembic.md."""
    page = (ROOT / "docs" / "alembic.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (shop.path / "env.py").write_text(ABOVE + block)

    assert [kind for kind, *_ in shop.autogenerate()] == ["add_table"]
    shop.upgrade()

    OffsetStore.connect(shop.url).close()
    assert {"payments", "alembic_version"} <= tables(shop.url)
    assert shop.autogenerate() == []


@pytest.mark.behaviour("OPS-9")
@pytest.mark.parametrize("schema", [None, "jobs"])
def test_without_exclude_it_would_drop_them(shop: Shop, schema: str | None) -> None:
    shop.include_schemas, shop.schema, shop.include_name = True, schema, None

    shop.upgrade()

    assert names([diff for diff in shop.autogenerate() if diff[0] == "remove_table"]) == OURS


def test_the_applications_own_include_name_is_asked_about_everything_else(shop: Shop) -> None:
    asked: set[str | None] = set()

    def not_the_legacy(name: str | None, kind: str, _parents: object) -> bool:
        asked.add(name)
        return kind != "table" or name != "legacy"

    deploy(shop)
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE legacy (id bigint)")
        connection.execute("CREATE TABLE forgotten (id bigint)")
    shop.include_name = exclude(not_the_legacy)

    assert names(shop.autogenerate()) == {"forgotten"}
    assert {"legacy", "forgotten", "payments"} <= asked
    assert not asked & OURS


def test_a_revision_of_its_own_may_bring_them_instead(shop: Shop) -> None:
    shop.in_env = "no"
    (shop.path / "versions" / "shop1.py").write_text(BY_REVISION)

    shop.upgrade()

    OffsetStore.connect(shop.url).close()
    assert {"before", "after"} <= tables(shop.url)


def test_where_each_migration_has_its_transaction_it_comes_before_them(shop: Shop) -> None:
    """Nobody would commit it among them."""
    shop.transaction_per_migration = True
    with pytest.raises(ConfigurationError, match=r"would not be committed.*begin_transaction"):
        shop.upgrade()

    shop.in_env = "before"
    deploy(shop)
    OffsetStore.connect(shop.url).close()
    assert shop.autogenerate() == []
