"""Which cluster it is, told by a broker that may know of no broker: one whose controller has lost sight of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest

from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka.client import Client, Deadline

API_VERSIONS, METADATA = 18, 3
NO_OPERATIONS = -(2**31)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Answering(StreamRequestHandler):
    server: Any

    def handle(self) -> None:
        while head := self.rfile.read(4):
            request = self.rfile.read(struct.unpack(">i", head)[0])
            key, version, correlation = struct.unpack(">hhi", request[:8])
            if key == API_VERSIONS:
                unsupported = 35 if version else 0
                answer = struct.pack(">hi6h", unsupported, 2, METADATA, 0, 8, API_VERSIONS, 0, 0)
            else:
                answer = self.server.metadata(request[8:])
            answer = struct.pack(">i", correlation) + answer
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


class OneBroker(ThreadingTCPServer):
    """Knows itself, but not the topics that it is asked about; answers ``empty`` requests as if it knew no broker."""

    daemon_threads = True
    empty = 0

    def metadata(self, body: bytes) -> bytes:
        self.empty -= 1
        host, port = "127.0.0.1", int(self.server_address[1])
        brokers = struct.pack(">ii", 1, 1) + string(host) + struct.pack(">ih", port, -1)
        if self.empty >= 0:
            brokers = struct.pack(">i", 0)
        body = body[2 + struct.unpack(">h", body[:2])[0] :]  # behind the client's id
        names, topics = struct.unpack(">i", body[:4])[0], struct.pack(">i", 0)
        if names > 0:
            name = body[6 : 6 + struct.unpack(">h", body[4:6])[0]].decode()
            topics = struct.pack(">ih", 1, 3) + string(name) + struct.pack(">bii", 0, 0, NO_OPERATIONS)
        rest = string("the cluster") + struct.pack(">i", 1) + topics + struct.pack(">i", NO_OPERATIONS)
        return struct.pack(">i", 0) + brokers + rest


@contextmanager
def client_of(server: OneBroker) -> Generator[Client]:
    client = Client({"bootstrap.servers": f"127.0.0.1:{server.server_address[1]}"})
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def server() -> Iterator[OneBroker]:
    with OneBroker(("127.0.0.1", 0), Answering) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("topic", ["unknown", "__consumer_offsets"])
def test_a_broker_that_knows_no_broker_ends_no_process(server: OneBroker, topic: str) -> None:
    with client_of(server) as client:
        assert client.cluster_id(topic, Deadline.after(20)) == "the cluster"
        server.empty = 99  # librdkafka now has a broker to ask, and is told that there is none
        assert client.cluster_id(topic, Deadline.after(20)) == "the cluster"
    server.empty = 0
    with client_of(server) as client:
        assert client.cluster_id(topic, Deadline.after(20)) == "the cluster"


def test_nobody_who_answers_is_an_error_at_the_deadline() -> None:
    started = time.monotonic()
    client = Client({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnavailable, match=r"asking for the cluster's id.*Connection refused"):
        client.cluster_id("payments", Deadline.after(2))
    client.close()
    assert time.monotonic() - started < 15
