"""Serves a job's metrics and its health over HTTP, from the driver."""

from __future__ import annotations

import hmac
import json
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, exposition

from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.health import Limits, Verdict, judge
from offsetstore.monitoring.metrics import Metrics
from offsetstore.monitoring.supervision import FactCollector, OnDead, RunningClock, Supervision
from offsetstore.monitoring.web import Answer, Request, Server, check_token, is_loopback
from offsetstore.protocol.events import Event
from offsetstore.store import heartbeat

PORT: Final = 9464
"""OpenTelemetry's port for an application's Prometheus metrics."""

_FAILURES: Final = {"/livez": HTTPStatus.INTERNAL_SERVER_ERROR, "/readyz": HTTPStatus.SERVICE_UNAVAILABLE}


class Monitoring(Metrics):
    """Metrics at ``http://host:port/metrics`` and health at ``/livez`` and ``/readyz``, until it is closed.

    ::

        with OffsetStore.connect(url, observers=[Monitoring()]) as store: ...

    :param port: 0 for any free one; see ``port``.
    :param host: the address to listen on. By default only this machine can connect. On another address the probes
        answer without details unless the request has the token; the metrics are open.
    :param registry: of other metrics, which are then served too.
    :param limits: how long a state may last before the job is not live, or not ready.
    :param on_dead: ``"exit"`` ends the process once liveness has failed for ``limits.exit`` seconds: the stacks of all
        threads go to standard error, and the exit code is `ExitCode.DEAD`, or `ExitCode.FENCED` for a lost claim.
    :param token: clients that send it as ``Authorization: Bearer`` get the details.
    :raises ConfigurationError: it can't listen there, or the token or ``limits.unreachable`` is too short.
    """

    def __init__(
        self,
        port: int = PORT,
        *,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        limits: Limits | None = None,
        on_dead: OnDead | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(registry)
        self._limits = limits or Limits()
        # Else each wait for the next heartbeat would be an outage.
        if self._limits.unreachable < 2 * heartbeat.INTERVAL:
            raise ConfigurationError(
                "Limits.unreachable is shorter than the database's answers are apart",
                found=self._limits.unreachable,
                expected=f"at least {2 * heartbeat.INTERVAL:g} s",
            )
        if on_dead not in {None, "exit"}:
            raise ConfigurationError('on_dead must be "exit" or None', found=repr(on_dead))
        check_token(token)
        self._clock = RunningClock()
        self._facts = FactCollector(self._clock, self._limits)
        self._token = token
        self._is_local = is_loopback(host)
        self._served = self.registry
        self._server = Server(self._answer, host=host, port=port)
        self._server.start()
        exit_after = self._limits.exit if on_dead == "exit" else None
        self._supervision = Supervision(self.health, self._clock, exit_after)

    def on(self, event: Event) -> None:
        """Record the event, and count it."""
        self._facts.on(event)
        super().on(event)

    def health(self) -> Verdict:
        """Judge the job as it is now."""
        return judge(self._facts.facts(), self._limits, self._clock())

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    def close(self) -> None:
        """Stop listening and judging. Events are still counted."""
        self._supervision.close()
        self._facts.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, request: Request) -> Answer:
        path = request.path.removesuffix("/")
        if path == "/metrics":
            encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
            names = parse_qs(request.query).get("name[]")
            found = encode(self._served.restricted_registry(names) if names else self._served)
            return HTTPStatus.OK, found, {"Content-Type": content_type}
        # A mistyped probe must not succeed.
        if path not in _FAILURES:
            status, found = HTTPStatus.NOT_FOUND, {"paths": [*_FAILURES, "/metrics"]}
        else:
            verdict = self.health()
            is_good = verdict.is_live if path == "/livez" else verdict.is_ready
            status = HTTPStatus.OK if is_good else _FAILURES[path]
            details = self._is_local
            if self._token is not None:
                sent = request.headers.get("Authorization", "").encode(errors="replace")
                details = hmac.compare_digest(sent, f"Bearer {self._token}".encode())
            found = document(verdict, details=details)
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
        return status, json.dumps(found).encode() + b"\n", headers


def document(verdict: Verdict, *, details: bool) -> dict[str, object]:
    """Return what the probes answer.

    :param details: whether with the groups' names, and how long each state has lasted.
    """
    found: dict[str, object] = {"live": verdict.is_live, "ready": verdict.is_ready, "codes": list(verdict.codes)}
    if details:
        found["reasons"] = [
            {"code": finding.code, "group": finding.group, "text": finding.text} for finding in verdict.findings
        ]
    return found
