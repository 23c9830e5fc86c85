from __future__ import annotations

import pickle
import re
from inspect import isclass
from typing import Any

import pytest

from offsetstore import errors
from offsetstore.errors import OffsetStoreError, RowsRefused
from offsetstore.offsets import TopicPartition

P0 = TopicPartition("payments", 0)
CLASSES = [value for value in vars(errors).values() if isclass(value) and issubclass(value, OffsetStoreError)]
FIELDS = ("what", "topic_partition", "found", "expected", "next_step", "doing")


def passed_on(error: OffsetStoreError) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the same line


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_it_crosses_a_process_boundary_with_its_fields_and_needs_no_more_than_what_happened(
    cls: type[OffsetStoreError],
) -> None:
    error = cls("it broke", topic_partition=P0, found=(1, "two"), expected=[3], next_step="Mend it.")
    copy = passed_on(error)
    assert type(copy) is cls
    assert str(copy) == str(error) == "payments-0: it broke; found (1, 'two'); expected [3]. Mend it."
    assert [getattr(copy, field) for field in FIELDS] == [getattr(error, field) for field in FIELDS]

    error = cls("it broke")
    assert (error.topic_partition, error.found, error.expected) == (None, None, None)
    assert error.next_step == cls.default_next_step
    assert str(passed_on(error)) == str(error) == f"it broke. {error.next_step}".strip()
    assert str(cls("it broke", next_step="")) == "it broke."


def test_one_that_names_no_partition_is_told_what_was_being_done_once() -> None:
    doing = "writing batch 7: payments-0 [40, 80)"
    where: dict[str, Any] = {"table": "flights", "column": "delay", "constraint": "positive", "sqlstate": "23514"}
    error = RowsRefused("it broke", **where, found=1, next_step="Mend it.")
    error.while_(doing)
    error.while_("claiming group 'billing'")
    copy = passed_on(error)
    assert str(copy) == str(error) == f"it broke; found 1; while {doing}. Mend it."
    assert {name: getattr(copy, name) for name in where} == where

    named = errors.StaleClaim("it broke", topic_partition=P0, next_step="")
    named.while_(doing)
    assert str(named) == "payments-0: it broke."


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.split("::\n", 1)[1].split("\n\nEach", 1)[0].splitlines():
        names = re.match(r"^(?P<lead>[ |]*(?:\+-- )?)(?P<names>[A-Z]\w+(?:, [A-Z]\w+)*,?)(?:  |$)", line)
        if names is None:
            assert not line.strip(" |"), line
            continue
        # Every level is five columns further to the right; a list of names goes on in a line without a branch.
        level = len(names["lead"]) // 5
        for name in names["names"].rstrip(",").split(", "):
            drawn[name] = above[level - 1] if level else "Exception"
            above[level:] = [name]

    assert drawn == {cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES}
