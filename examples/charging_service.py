"""The service that `charging_job.py` calls: it charges payments, each once, however often its request comes.

A client sends a payment's id as ``Idempotency-Key``. The service keeps the answer under that key, and gives it again
when the key comes again: so a client that doesn't know whether its call has arrived may repeat it. (This one keeps its
answers in memory; a real one has them in its database, in the transaction of the charge.)

    python examples/charging_service.py 8085

``POST /charges`` with JSON (``{"payer": "ana", "amount": "12.50"}``) answers ``{"charge": 1}``; an amount that is not
above 0 is answered with 422.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from decimal import Decimal
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChargingService(ThreadingHTTPServer):
    """Charges payments on 127.0.0.1.

    ``charges`` has the number of each key's charge, ``requests`` how often each key has come.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Requests)
        self.charges: dict[str, int] = {}
        self.requests = Counter[str]()
        self._lock = threading.Lock()

    def charge(self, key: str) -> int:
        """Charge the payment, or return the number of the charge that was made for the key."""
        with self._lock:
            self.requests[key] += 1
            return self.charges.setdefault(key, len(self.charges) + 1)


class _Requests(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        payment = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if Decimal(payment["amount"]) <= 0:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "the amount must be above 0"})
        else:
            self._answer(HTTPStatus.OK, {"charge": self.server.charge(self.headers["Idempotency-Key"])})

    def _answer(self, status: HTTPStatus, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the method that it replaces
        """Say nothing."""


if __name__ == "__main__":
    with ChargingService(int(sys.argv[1])) as service:
        print(f"charging payments on http://127.0.0.1:{service.server_port}/charges")
        service.serve_forever()
