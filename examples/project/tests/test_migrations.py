"""The shop's migrations, and offsetstore's with them."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from offsetstore import OffsetStore


def test_one_upgrade_makes_the_shop_s_tables_and_offsetstore_s(
    alembic: Config, offsetstore_empty_database: str
) -> None:
    command.upgrade(alembic, "head")
    command.upgrade(alembic, "head")  # the next deploy
    with OffsetStore.connect(offsetstore_empty_database) as store:
        assert store.offsets("shop-payments") == {}


def test_autogenerate_finds_no_difference_and_drops_nothing_of_offsetstore_s(alembic: Config) -> None:
    command.upgrade(alembic, "head")
    command.check(alembic)
