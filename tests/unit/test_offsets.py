"""The values that all of the project shares."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from offsetstore.offsets import makes_many


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@makes_many
def collects(error: Exception | None = None) -> bool:
    if error is not None:
        raise error
    return gc.isenabled()


def test_no_garbage_is_collected_while_many_objects_are_made_and_what_it_was_before_it_is_afterwards() -> None:
    assert (collects(), gc.isenabled()) == (False, True)
    with pytest.raises(LookupError):
        collects(LookupError())
    assert gc.isenabled()
    gc.disable()
    assert (collects(), gc.isenabled()) == (False, False)
