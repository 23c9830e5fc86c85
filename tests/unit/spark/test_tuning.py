"""What `tuned` adds to the options of the Kafka source."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore.spark.settings import READER, tuned

KAFKA = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "payments"}


class Untouched:
    """A session that must not be asked for anything, nor be changed."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


SESSION: Any = Untouched()


def test_options_are_added_to_those_of_the_source_and_nothing_of_the_session_is_touched() -> None:
    assert tuned(SESSION, KAFKA) == KAFKA | READER


@pytest.mark.parametrize("name", ["kafka.max.poll.records", "KAFKA.max.poll.Records"])
def test_an_option_of_the_users_own_stays_and_is_there_once(name: str) -> None:
    options = tuned(SESSION, KAFKA | {name: "77"})
    assert {key.lower(): value for key, value in options.items()}["kafka.max.poll.records"] == "77"
    assert len({key.lower() for key in options}) == len(options) == len(KAFKA | READER)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_is_limited_unless_the_user_says_how_large_it_is(name: str) -> None:
    assert tuned(SESSION, KAFKA)["maxOffsetsPerTrigger"] == "2000000"
    limits = {key: value for key, value in tuned(SESSION, KAFKA | {name: "3000000"}).items() if "PerTrigger" in key}
    assert limits == {name: "3000000"}
