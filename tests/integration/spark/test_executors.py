"""What is asked of executors before they get tasks, on threads of this process; see also `test_cluster`."""

from __future__ import annotations

import importlib.metadata
import threading
from pathlib import Path
from weakref import WeakSet

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from offsetstore import OffsetStore
from offsetstore.errors import ExecutorEnvironment
from offsetstore.spark.executors import connect, preflight
from offsetstore.spark.executors.connect import sending_password
from offsetstore.spark.executors.preflight import PACKAGES, check_executors, check_once
from tests.support.waiting import wait_until

PASSWORD = "canary4711"


def test_another_version_is_refused_by_name_and_an_application_is_checked_until_it_has_passed_once(
    offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "0.0.1" if name == "pgpq" else real(name)

    checked: WeakSet[SparkContext] = WeakSet()
    monkeypatch.setattr(preflight, "_checked", checked)
    with monkeypatch.context() as differs:
        differs.setattr(importlib.metadata, "version", version)
        with pytest.raises(ExecutorEnvironment) as caught:
            check_once(offsetstore_spark)
        with pytest.raises(ExecutorEnvironment):
            check_once(offsetstore_spark)
    assert f"pgpq {real('pgpq')}" in str(caught.value.found)
    assert "pgpq 0.0.1" in str(caught.value.expected)
    assert "pyarrow" not in str(caught.value.found)
    check_once(offsetstore_spark)
    [found] = check_executors(offsetstore_spark)
    assert set(found.versions) == set(PACKAGES)
    monkeypatch.setattr(preflight, "check_executors", pytest.fail)
    check_once(offsetstore_spark.newSession())


def test_a_python_that_does_not_start_is_refused(
    offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsetstore_spark.sparkContext, "pythonVer", "3.9")
    with pytest.raises(ExecutorEnvironment, match="--archives") as caught:
        check_executors(offsetstore_spark)
    assert "different version" in str(caught.value.found)


def test_executors_that_have_no_time_are_given_up(offsetstore_spark: SparkSession, tmp_path: Path) -> None:
    context = offsetstore_spark.sparkContext

    def wait(number: int) -> None:
        (tmp_path / str(number)).touch()
        threading.Event().wait(300)

    def occupy() -> None:
        context.addJobTag("occupy")
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize([0, 1], 2).foreach(wait)

    busy = threading.Thread(target=occupy, daemon=True)
    busy.start()
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)  # both of Spark's threads
        # Spark can only cancel what it has got: by then it must have the job that checks.
        with pytest.raises(ExecutorEnvironment, match=r"no answer within 5 s"):
            check_executors(offsetstore_spark, timeout=5)
    finally:
        context.cancelJobsWithTag("occupy")
        busy.join(60)


def test_the_password_does_not_outlast_the_block(offsetstore_spark: SparkSession, offsetstore_database: str) -> None:
    context = offsetstore_spark.sparkContext
    with OffsetStore.connect(offsetstore_database, credentials=lambda: PASSWORD) as store:
        with sending_password(offsetstore_spark, store):
            assert PASSWORD not in str(context.getLocalProperty("offsetstore.password"))
        assert context.getLocalProperty("offsetstore.password") is None
    with OffsetStore.connect(offsetstore_database) as store, sending_password(offsetstore_spark, store):
        assert context.getLocalProperty("offsetstore.password") is None, "there is none to send"


def test_an_executors_own_environment_can_have_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETSTORE_URL", "postgresql://job:of-the-url@host/db")
    assert connect._secrets() == {"password": "of-the-url"}
    monkeypatch.setenv("OFFSETSTORE_PASSWORD", "its-own")
    assert connect._secrets() == {"password": "its-own"}
