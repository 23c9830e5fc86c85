from __future__ import annotations

import traceback
from typing import Any

import pytest
from sqlalchemy import create_engine

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.url import check_engine, connection_parameters, make_engine
from tests.support.shown import shown

SECRET = "tOp-sEcret"
PLACE = {"host": "db", "port": "5433", "dbname": "sales", "user": "me"}


def without_timeouts(url: str) -> dict[str, Any]:
    parameters = connection_parameters(url)
    assert parameters.pop("connect_timeout") == 10
    assert parameters.pop("tcp_user_timeout") == 30_000
    silent = {name: parameters.pop(f"keepalives_{name}") for name in ("idle", "interval", "count")}
    assert silent["idle"] + silent["interval"] * silent["count"] == 30
    return parameters


def test_all_forms_mean_the_same_database() -> None:
    for url in (
        *(f"{scheme}://me@db:5433/sales" for scheme in ("postgresql", "postgres", "postgresql+psycopg2")),
        "host=db port=5433 dbname=sales user=me",
        "  postgresql+asyncpg://me@db:5433/sales\n",
        "jdbc:postgresql://db:5433/sales?user=me&reWriteBatchedInserts=true&prepareThreshold=0",
    ):
        assert without_timeouts(url) == PLACE


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:p%40ss%2Fw%3Ard%25@db/sales", {"password": "p@ss/w:rd%", "host": "db"}),
        ("postgresql+psycopg://me:p%40ss+1@db/sales", {"password": "p@ss+1", "host": "db"}),
        ("postgresql://me:[p@db/sales", {"password": "[p", "host": "db"}),
        ("host=db password='a b@c://d'", {"password": "a b@c://d", "host": "db"}),
        ("postgresql://me@[::1]:5433/sales", {"host": "::1", "port": "5433"}),
        ("postgresql://h1:5432,h2:5433/sales?target_session_attrs=primary", {"host": "h1,h2", "port": "5432,5433"}),
        ("postgresql://me@/sales?host=/var/run/postgresql", {"host": "/var/run/postgresql", "dbname": "sales"}),
        ("postgresql://%2Fvar%2Frun/sales", {"host": "/var/run"}),
        ("postgresql://me@db/sales?sslmode=require&connect_timeout=3", {"sslmode": "require", "connect_timeout": "3"}),
        (
            "postgresql://db/sales?tcp_user_timeout=0&keepalives_idle=9",
            {"tcp_user_timeout": "0", "keepalives_idle": "9"},
        ),
        ("postgresql://db/sales?options=-c%20a%3Dme@b", {"options": "-c a=me@b"}),
    ],
)
def test_libpqs_own_parameters_pass(url: str, expected: dict[str, object]) -> None:
    found = connection_parameters(url)

    assert expected.items() <= found.items(), found


def test_jdbc_forms() -> None:
    for rest, more in {
        "/sales?user=me&password=p%40ss%26+word": {"dbname": "sales", "user": "me", "password": "p@ss& word"},
        "/": {},
        "/my%20sales": {"dbname": "my sales"},
        "/?ssl=true": {"sslmode": "verify-full"},
        "/?ssl": {"sslmode": "verify-full"},
        "/?ssl=FALSE&tcpKeepAlive=True": {"keepalives": "1"},
        "/?ssl=true&sslmode=require": {"sslmode": "require"},
        "/?ssl=true&sslfactory=org.postgresql.ssl.NonValidatingFactory": {"sslmode": "require"},
        "/?currentSchema=a": {"options": "-c search_path=a"},
        "/?currentSchema=a,%20b&options=-c%20work_mem%3D9": {"options": "-c work_mem=9 -c search_path=a,\\ b"},
        "/?ApplicationName=job&socketTimeout=5": {"application_name": "job"},
    }.items():
        assert without_timeouts(f"jdbc:postgresql://db{rest}") == {"host": "db", "port": "5432", **more}
    local = {"host": "localhost", "port": "5432", "dbname": "sales"}
    assert without_timeouts("jdbc:postgresql:sales") == without_timeouts("jdbc:postgresql:///sales") == local
    several = {"host": "h1,::1,h3", "port": "1,2,5432", "target_session_attrs": "primary"}
    assert without_timeouts("jdbc:postgresql://h1:1,[::1]:2,h3/?targetServerType=primary") == several
    assert connection_parameters("jdbc:postgresql://db/?loginTimeout=3")["connect_timeout"] == "3"


def test_what_only_the_jdbc_driver_knows_is_logged_by_name_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    connection_parameters(f"jdbc:postgresql://db/?sslpasswordcallback={SECRET}&password={SECRET}")

    assert "only the JDBC driver supports: sslpasswordcallback" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("rest", [f"&{SECRET}=1", f"&{SECRET}", f"&a={SECRET}&{SECRET}=b", f"&SSL{SECRET}=true"])
def test_the_rest_of_a_password_that_has_an_ampersand_is_counted_and_not_logged(
    caplog: pytest.LogCaptureFixture, rest: str
) -> None:
    caplog.set_level("DEBUG")

    connection_parameters(f"jdbc:postgresql://db/sales?prepareThreshold=0&password=abc{rest}")

    assert "only the JDBC driver supports: prepareThreshold" in caplog.text
    assert "write %26 for the &" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize(
    "url",
    [
        f"jdbc:postgresql://db/sales&user=me&password={SECRET}",
        f"jdbc:postgresql://db/sales;password={SECRET}",
        f"jdbc:postgresql://db;password={SECRET}/sales",
        f"postgresql://me@db/sales&password={SECRET}",
        f"postgresql://me;password={SECRET}@db/sales",
        f"postgresql://db,password={SECRET}/sales",
        f"host=db user=me,password={SECRET}",
        f"host='db password={SECRET}'",
    ],
)
def test_parameters_in_the_wrong_place_are_refused_before_a_server_repeats_them(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connection_parameters(url)

    assert SECRET not in shown(caught.value)
    assert "parameter" in str(caught.value)


def test_what_is_not_understood_is_refused_without_showing_the_password() -> None:
    for url in (
        f"{SECRET}:me@db/sales",
        *(f"{scheme}/sales?password={SECRET}" for scheme in ("jdbc:mysql://db", "jdbc:postgresql+psycopg://db")),
        f"jdbc:postgresql://me:{SECRET}@db/sales",
        f"jdbc:postgresql://db:port/sales?password={SECRET}",
        f"postgresql:me:{SECRET}@db",
        f"postgresql://me:{SECRET}@db/sales?nonsense=1",
        f"postgresql://me:{SECRET}@[::1/sales",
        *(f"postgresql://me:{begin}{SECRET}@db/sales" for begin in ("x@", "x/", "1/", "%ZZ")),
        f"postgresql://me:{SECRET}/x",
        f"postgresql+psycopg://me:x@{SECRET}@db/sales",
        f"host=db password=a {SECRET}",
        f"host=me@{SECRET}",
        f"hots=db password={SECRET}",
        SECRET,
    ):
        with pytest.raises(ConfigurationError) as caught:
            make_engine(url)
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert SECRET not in told
        assert "postgresql://user@host:5432/database" in str(caught.value)


def test_an_unencoded_password_is_told_how_to_encode_it_and_nothing_else_is() -> None:
    no_scheme = ("localhost:5432/sales", "sales", f"me:{SECRET}@localhost/sales", "postgresql:localhost")
    for url, what in {
        **dict.fromkeys(no_scheme, "has no scheme.*Begin it with postgresql://"),
        f"hots=db password={SECRET}": "could not parse.*Name libpq's keys",
        f"host=db password=a {SECRET}": "could not parse.*quote a value with spaces",
        "mysql://me@db/sales": "not a PostgreSQL URL.*Name a PostgreSQL database",
        "postgresql://me:p@ss@db/sales": "ncode.*%40 for @",
    }.items():
        with pytest.raises(ConfigurationError, match=what) as caught:
            connection_parameters(url)
        assert ("ncode" in str(caught.value)) == ("p@ss" in url)
        assert SECRET not in str(caught.value)


def test_without_a_url_the_environment_names_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETSTORE_URL", "postgresql://me@db:5433/sales")
    assert connection_parameters(None)["dbname"] == "sales"
    for value in ("", "  ", None):
        if value is None:
            monkeypatch.delenv("OFFSETSTORE_URL")
        else:
            monkeypatch.setenv("OFFSETSTORE_URL", value)
        with pytest.raises(ConfigurationError, match=r"OFFSETSTORE_URL is not set.*Set OFFSETSTORE_URL, or pass a URL"):
            connection_parameters(None)


def test_nothing_that_prints_the_engine_shows_the_password() -> None:
    engine = make_engine(f"postgresql://me:{SECRET}@db/sales")

    assert SECRET not in f"{engine!r} {engine.url!r} {engine.url.render_as_string(hide_password=False)} {engine.pool!r}"


def test_an_engine_of_another_database_or_driver_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"found sqlite\+pysqlite; expected postgresql\+psycopg"):
        check_engine(create_engine("sqlite://"))
    engine = create_engine("postgresql+psycopg://db/sales")
    assert check_engine(engine) is engine
