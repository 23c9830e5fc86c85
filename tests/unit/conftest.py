"""A store in memory, what it told its observer, and the claim of a job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Claim
from offsetstore.testing import InMemoryOffsetStore
from tests.support.recorder import Recorder


@pytest.fixture
def store(recorder: Recorder) -> Iterator[InMemoryOffsetStore]:
    with InMemoryOffsetStore(observers=[recorder]) as made:
        yield made


@pytest.fixture
def claim(store: InMemoryOffsetStore) -> Claim:
    return store.claim("billing", topics=["payments"])
