"""A forked child gets the same error from a store in memory as from a database."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from weakref import WeakSet

import pytest

from offsetstore import OffsetRange, TopicPartition, Transaction
from offsetstore.runtime import process
from offsetstore.testing import InMemoryOffsetStore
from tests.support.forking import BEFORE_A_FORK, in_new_process, run_forked

P0 = TopicPartition("payments", 0)
ALL = OffsetRange(0, 2)


WAYS: dict[str, Callable[[Transaction], object]] = {
    "end of the block": lambda _: None,
    "advance": lambda tx: tx.advance({P0: ALL}),
    "touch": Transaction.touch,
}


def go_on_in_children() -> None:
    for way in WAYS:
        go_on_in_a_child(way)


def go_on_in_a_child(way: str) -> None:
    with InMemoryOffsetStore() as store, store.claim("billing", topics=["payments"]) as claim:

        def job() -> None:
            with store.transaction(claim) as tx:
                left = tx.lock({P0: ALL})[P0].remaining
                child = os.fork()
                if child == 0:
                    WAYS[way](tx)
                    return
                os.waitpid(child, 0)
                tx.advance({P0: left})

        told = run_forked(job)
        assert told.startswith(BEFORE_A_FORK), told
        assert store.offsets("billing")[P0].next_offset == 2


@pytest.mark.behaviour("TX-2")
def test_a_child_can_not_go_on_with_its_parent_s_transaction() -> None:
    in_new_process(go_on_in_children)


@pytest.mark.behaviour("TX-2")
def test_a_child_that_may_open_no_more_files_still_loses_the_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in the child is called here: it must make nothing."""
    monkeypatch.setattr(process, "_kept", WeakSet[process.HasSocket]())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process.keep_from_children(ours)

        def refused() -> None:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(socket, "socketpair", refused)
        process._take_sockets()
        with pytest.raises(BrokenPipeError):
            ours.send(b"X")
        assert theirs.recv(1) == b""
