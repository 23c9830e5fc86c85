"""A TCP proxy that is a bad network: late, in small pieces, with pauses, and with connections that are reset.

It knows no protocol. The application sees what it would see over a lossy line: TCP itself hides lost packets, and what
is left of them are pauses and resets.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from tests.support.tcp import Proxy

_READ = 16384


@dataclass(frozen=True, slots=True)
class Weather:
    """What the network does to each piece that it reads from one side.

    :param delay: it waits so many seconds, times a number between 0.5 and 1.5.
    :param piece: it is sent on in parts of at most so many bytes, each a packet of its own.
    :param pause: with this probability it waits for `pause_seconds` more.
    :param reset: with this probability both sides get a reset instead.
    """

    delay: float = 0.0
    piece: int = _READ
    pause: float = 0.0
    pause_seconds: float = 1.0
    reset: float = 0.0


FINE = Weather()


class SlowProxy(Proxy):
    """Stands before a host and port; a context manager. ``weather`` may be changed at any time.

    ``happened`` counts what was done to how many pieces: ``pieces``, ``pauses``, ``resets``.

    :param port: where it listens; a free one if not given.
    """

    def __init__(self, target: tuple[str, int], dice: random.Random, *, port: int = 0, weather: Weather = FINE) -> None:
        super().__init__(target, port=port)
        self.weather = weather
        self.happened: Counter[str] = Counter()
        self._dice = dice

    def reset_all(self) -> int:
        """Reset all connections that are open; return how many sockets that were."""
        open_ = self._open_sockets()
        for one in open_:
            self._reset(one)
        return len(open_)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_accepting()
        self.reset_all()

    def _serve(self, client: socket.socket) -> None:
        server = self._connect_for(client)
        if server is not None:
            self._in_thread(self._carry, client, server)
            self._in_thread(self._carry, server, client)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_READ):
                weather = self.weather
                self.happened["pieces"] += 1
                if self._dice.random() < weather.reset:
                    self.happened["resets"] += 1
                    self._reset(source)
                    self._reset(target)
                    return
                seconds = weather.delay * self._dice.uniform(0.5, 1.5)
                if self._dice.random() < weather.pause:
                    self.happened["pauses"] += 1
                    seconds += weather.pause_seconds
                if seconds:
                    time.sleep(seconds)
                for begin in range(0, len(data), weather.piece):
                    target.sendall(data[begin : begin + weather.piece])
        for one in (source, target):
            self.close(one)

    def _reset(self, one: socket.socket) -> None:
        self._forget(one)
        with suppress(OSError):
            # Closing without lingering sends a reset. A thread that reads wakes up by the shutdown alone.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.shutdown(socket.SHUT_RD)
            one.close()
