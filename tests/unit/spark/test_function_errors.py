"""Which of Spark's errors a record can cause."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ArithmeticException, PySparkException, PythonException

from offsetstore.errors import Outage, RowsRefused
from offsetstore.spark.function_errors import function_failed, may_be_of_records

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/job/transform.py", line 3, in parse
    return int(value)
           ^^^^^^^^^^
"""

NEXT = '\n\nTraceback (most recent call last):\n  File "/job/transform.py", line 9, in retry\n'
WHILE = f"\n\nDuring handling of the above exception, another exception occurred:{NEXT}"
FROM = f"\n\nThe above exception was the direct cause of the following exception:{NEXT}"


class ServiceDown(Outage):
    """A user's own."""


class WithState(PySparkException):
    """As Spark's JVM raises it."""

    def __init__(self, state: str | None) -> None:
        super().__init__("The value 'canary' is malformed.")
        self.state = state

    def getSqlState(self) -> str | None:  # noqa: N802 - Spark's name
        return self.state

    def getCondition(self) -> str:  # noqa: N802 - as above
        return "CAST_INVALID_INPUT"


class OfPlan(WithState, AnalysisException):
    """A query that can't be planned."""


@pytest.mark.behaviour("DLQ-1")
@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("ValueError: canary", "ValueError"),
        ("job.errors.NoCustomer: canary", "NoCustomer"),
        ("KeyError", "KeyError"),
        ("job.parse.<locals>.Bad: canary", "Bad"),
        (f"ValueError: one{WHILE}TypeError: canary\nand more", "TypeError"),
        (f"ValueError: one{FROM}TypeError: canary", "TypeError"),
        ("ValueError: can't parse:\ncanary", "ValueError"),
        ("pydantic.ValidationError: 1 error\namount\n  Input should be a number", "ValidationError"),
        ("ValueError: the record is:\nConnectionError: canary\nOutage", "ValueError"),
        (
            "ValueError: the record is:\n\nTraceback (most recent call last):\n  at f\nConnectionError: canary",
            "ValueError",
        ),
        ("  + Exception Group Traceback (most recent call last):\n  | canary", "PythonException"),
    ],
)
def test_what_a_function_raises_is_a_records(told: str, name: str) -> None:
    error = PythonException(message=f"{WORKER}{told}\n")
    failed = function_failed(error)
    assert failed is not None
    assert failed.error_class == name
    assert "canary" not in str(failed)
    assert failed.text == str(error)
    assert failed.__cause__ is error
    assert may_be_of_records(error)


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    "told",
    [
        "MemoryError",
        "ModuleNotFoundError: No module named 'rates'",
        "ConnectionRefusedError: [Errno 111]",
        "requests.exceptions.ConnectionError: rates.example",
        "offsetstore.errors.Outage: the service for rates is down",
        f"offsetstore.errors.Outage: down{WHILE}KeyError: 1",
        f"KeyError: 1{FROM}offsetstore.errors.Outage: down",
        "tests.unit.ServiceDown: a subclass",
        "httpx.ReadTimeout: canary",
        "urllib.error.URLError: canary",
    ],
)
def test_an_outage_is_no_records(told: str) -> None:
    error = PythonException(message=f"{WORKER}{told}\n")
    assert function_failed(error) is None
    assert not may_be_of_records(error)


@pytest.mark.parametrize("state", ["22018", "22012", "P0001"])
def test_a_value_that_spark_cant_compute_is_a_records(state: str) -> None:
    failed = function_failed(WithState(state))
    assert failed is not None
    assert (failed.error_class, failed.sqlstate) == ("CAST_INVALID_INPUT", state)
    assert "canary" not in str(failed)


@pytest.mark.parametrize(
    "error",
    [
        WithState("42P01"),
        WithState("XXKCM"),
        WithState(None),
        OfPlan("22023"),
        ArithmeticException("no state"),
        OSError(),
    ],
)
def test_another_error_is_not(error: Exception) -> None:
    assert function_failed(error) is None


def test_a_refusal_is_a_records_if_its_sqlstate_says_so() -> None:
    assert may_be_of_records(RowsRefused("refused", sqlstate="23514"))
    assert not may_be_of_records(RowsRefused("refused", sqlstate="42501"))
