"""What a reset refuses before it reads anything from Kafka."""

from __future__ import annotations

import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.testing import InMemoryOffsetStore, StaticBroker


@pytest.mark.parametrize("named", [{"payments": [-1]}, {"": [0]}])
def test_what_is_no_partition_is_refused(named: dict[str, list[int]]) -> None:
    with InMemoryOffsetStore() as store:
        store.claim(
            "billing", StaticBroker.with_topics({"payments": 1}, end=100), topics=["payments"], mirror_every=None
        )
        with pytest.raises(ConfigurationError, match="not partitions of a topic"):
            store.reset("billing", 4, partitions=named, reason="a slip")
