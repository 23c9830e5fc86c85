"""A process of ``offsetstore consume``: the function that it is given, and what it sets."""

from __future__ import annotations

import socket

import pytest

from offsetstore.cli.consume_process import Told, load, prepare
from offsetstore.consumer import Consumer
from offsetstore.errors import ConfigurationError, MissingDependency
from offsetstore.testing import InMemoryOffsetStore
from tests.support.consumer_job import consumer_of
from tests.support.consuming import APP
from tests.support.modules import forgotten


@pytest.mark.behaviour("CONS-11")
def test_static_members_have_an_instance_of_their_own() -> None:
    def made(**more: str) -> Consumer:
        return consumer_of(InMemoryOffsetStore(), "localhost:1", "payments", kafka=more)

    def told(*, count: int, is_static: bool) -> Told:
        return Told("app:consumer", 1, count, is_static=is_static, has_metrics=False)

    static = made()
    prepare(static, told(count=2, is_static=True))
    assert static.kafka["group.instance.id"] == f"{socket.gethostname()}-1"
    dynamic = made()
    prepare(dynamic, told(count=2, is_static=False))
    assert "group.instance.id" not in dynamic.kafka
    own = made(**{"group.instance.id": "mine"})
    prepare(own, told(count=1, is_static=False))
    assert own.kafka["group.instance.id"] == "mine"
    for another in (told(count=2, is_static=False), told(count=1, is_static=True)):
        with pytest.raises(ConfigurationError, match=r"kafka= may not set group\.instance\.id here"):
            prepare(own, another)


@pytest.mark.behaviour("CONS-11", "DX-1")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("no_such_app:consumer", "there is no module no_such_app"),
        ("tests.no_such_app:consumer", "there is no module tests.no_such_app"),
        ("tests.support.consumer_app:consume", "has no function consume"),
        ("tests.support.consumer_app:annotations", "has no function annotations"),
        ("tests.support.consumer_app:nothing", "returned no consumer"),
    ],
)
def test_what_is_no_function_that_returns_a_consumer_is_told(function: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as raised:
        load(function)
    assert raised.value.found


def test_without_the_extra_it_is_told_what_to_install() -> None:
    with (
        forgotten("offsetstore.consumer", lacking="confluent_kafka"),
        pytest.raises(MissingDependency, match=r"pip install 'offsetstore\[consumer\]'"),
    ):
        load(APP)
