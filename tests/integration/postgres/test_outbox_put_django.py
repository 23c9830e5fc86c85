"""`put` within Django's own transactions: a real Django, in a process of its own, since its settings are global."""

from __future__ import annotations

import json
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.conftest import Query

pytestmark = pytest.mark.behaviour("OUT-14")

DJANGO = """
import json, sys
from django.conf import settings

given = json.loads(sys.argv[1])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **given}}, USE_TZ=True)

import django
from django.db import connection, models, transaction

from offsetstore.errors import ConfigurationError
from offsetstore.outbox import OutboxRecord, put

django.setup()


class Order(models.Model):
    item = models.TextField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "orders"


class Stop(Exception):
    pass


def order(item):
    Order.objects.create(item=item)
    assert put(connection, [OutboxRecord("orders", item.encode(), bytes(range(256)))], source="shop") == 1


with connection.schema_editor() as editor:
    editor.create_model(Order)
with transaction.atomic():
    order("committed")
try:
    with transaction.atomic():
        order("rolled back")
        raise Stop
except Stop:
    pass
with transaction.atomic():
    order("outer")
    try:
        with transaction.atomic():
            order("inner, rolled back")
            raise Stop
    except Stop:
        pass
    with transaction.atomic():
        order("inner")
    transaction.on_commit(lambda: print("committed", flush=True))
with transaction.atomic():
    order("marked for a rollback")
    transaction.set_rollback(True)
connection.close()
try:
    put(connection, [("orders", b"not connected", None)], source="shop")
except ConfigurationError as refused:
    print(refused, flush=True)
Order.objects.count()
try:
    put(connection, [("orders", b"in autocommit mode", None)], source="shop")
except ConfigurationError as refused:
    print(refused, flush=True)
"""


@pytest.mark.parametrize("options", [{}, {"server_side_binding": True}], ids=["client's cursor", "server's cursor"])
def test_records_are_committed_with_django_s_rows_or_rolled_back_with_them(
    options: dict[str, object], offsetstore_database: str, query: Query
) -> None:
    parts = conninfo_to_dict(offsetstore_database)
    given = {"NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts["port"]}
    arguments = [sys.executable, "-c", DJANGO, json.dumps({**given, "OPTIONS": options})]

    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    committed, refused = done.stdout.split("\n", 1)
    assert committed == "committed"
    assert refused.count("in autocommit mode") == 2
    assert refused.count("Use with transaction.atomic()") == 2
    kept = ["committed", "outer", "inner"]
    assert query("SELECT item FROM orders ORDER BY item") == [(item,) for item in sorted(kept)]
    with psycopg.connect(offsetstore_database) as connection:
        rows = connection.execute("SELECT consumer_group, topic, key, value FROM outbox ORDER BY id").fetchall()
    assert rows == [("shop", "orders", item.encode(), bytes(range(256))) for item in kept]
