"""A real Kafka broker without Docker: one process, KRaft, on the loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from offsetstore.errors import BrokerUnavailable, ConfigurationError, OffsetStoreError
from offsetstore.local import Notice
from offsetstore.local.jars import KAFKA_BROKER, jars
from offsetstore.local.java import ARCHIVE_SECONDS, QUICK, archive_of, find_java, reading
from offsetstore.local.kafka_properties import (
    LOG4J,
    STARTED,
    Certificates,
    KafkaPorts,
    SaslUser,
    SecuredListeners,
    as_properties,
    secured_properties,
    server_properties,
)
from offsetstore.local.servers import LOOPBACK, EmbeddedServer, answers, known, tail

_STOP_SECONDS = 20
_LOOK_SECONDS = 0.05


class KafkaBroker(EmbeddedServer[KafkaPorts]):
    """One broker with its own data: started on entry, stopped (and if temporary, removed) on exit.

    :param directory: of data, log and settings, which the next start finds again; if not given, a temporary one that is
        removed at the end.
    :param ports: on the loopback; free ones if not given. They stay the same across restarts.
    :param user: the user that the listener with credentials accepts.
    :param secured: also listen with TLS, with its own certificates (see `secured`), and let `user` log in with SCRAM
        too. The first start of a directory takes some seconds longer; it can't be changed later.
    :param heap: Java's ``-Xmx``.
    :param settings: of the broker's configuration, on top of ours.
    :param start_seconds: how long a start may take.
    :param notice: gets the progress of the jars' download, if there is one.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        ports: KafkaPorts | None = None,
        user: SaslUser | None = None,
        secured: bool = False,
        heap: str = "768m",
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 90,
        notice: Notice | None = None,
    ) -> None:
        super().__init__(directory, ports, ended_by="KILL")
        self.user = user or SaslUser()
        self._is_secured = secured
        self._heap = heap
        self._settings = dict(settings or {})
        self._start_seconds = start_seconds
        self._notice = notice
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ports(self) -> KafkaPorts:
        """The ports on which it listens.

        :raises ConfigurationError: before the first start, if no ports were given.
        """
        return known(self._ports, "ports")

    @property
    def bootstrap_servers(self) -> str:
        """The address of the listener without authentication."""
        return f"{LOOPBACK}:{self.ports.plain}"

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The address of the SASL_PLAINTEXT listener, which accepts `user` (PLAIN; if secured, SCRAM too)."""
        return f"{LOOPBACK}:{self.ports.sasl}"

    @property
    def secured(self) -> SecuredListeners:
        """The listeners for SSL and for SASL_SSL, and the certificates.

        :raises ConfigurationError: the broker is not secured, or was not started.
        """
        if self._ports is None or not self._ports.ssl:
            raise ConfigurationError(
                "the broker does not listen with TLS", next_step="Create it with secured=True, and start it."
            )
        addresses = [f"{LOOPBACK}:{port}" for port in self._ports[3:]]
        return SecuredListeners(*addresses, certificates=self._certificates)

    @property
    def pid(self) -> int | None:
        """The broker's process id; ``None`` if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def detach(self) -> int:
        """Let the broker outlive this process, and forget it. Return its process id.

        :raises ConfigurationError: it does not run.
        """
        process = self._process
        if process is None or process.poll() is not None:
            raise ConfigurationError("the broker does not run", next_step="Call start() first.")
        self._leave()
        self._process = None
        process.returncode = 0  # no longer ours to wait for: Popen would warn that it still runs
        return process.pid

    def stop(self) -> None:
        """Stop in order, and keep the data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _stop_for_good(self) -> None:
        self._end(signal.SIGKILL if self._directory is None else signal.SIGTERM)

    def _prepare(self) -> None:
        if self._directory is None:
            self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="offsetstore-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._ports is not None and self._is_secured:
            self._ports = self._ports.secured()

    def _free_ports(self) -> KafkaPorts:
        ports = KafkaPorts.free()
        return ports.secured() if self._is_secured else ports

    def _run_on(self, ports: KafkaPorts) -> OffsetStoreError | None:
        self._write_settings(ports)
        self._format()
        # An earlier start's lines stay in the log: only new ones count.
        before = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._java("kafka.Kafka", str(self.directory / "server.properties"))
        self._watch()
        if self._wait_until_started(ports, before):
            return None
        has_ended = self.pid is None
        self.kill()
        console = self.directory / "console.log"
        found = f"{tail(console)}\n{tail(self.log)}".strip() or "no line in its log"
        if has_ended:
            return BrokerUnavailable(
                "the Kafka broker ended while it started",
                found=found,
                next_step=f"See {console} and {self.log}. If a port is taken or memory is short, choose other ports or "
                "a smaller heap.",
            )
        return BrokerUnavailable(
            f"the Kafka broker did not start within {self._start_seconds:.0f} s",
            found=found,
            next_step=f"See {self.log}. If the machine is busy, try again.",
        )

    def _wait_until_started(self, ports: KafkaPorts, before: int) -> bool:
        deadline = time.monotonic() + self._start_seconds
        while time.monotonic() < deadline and self.pid is not None:
            if self.log.exists():
                with self.log.open(errors="replace") as log:
                    log.seek(before)
                    started = STARTED in log.read()
                if started and answers(ports.plain):
                    return True
            time.sleep(_LOOK_SECONDS)
        return False

    @property
    def _certificates(self) -> Certificates:
        return Certificates(self.directory / "certificates")

    def _write_settings(self, ports: KafkaPorts) -> None:
        settings = server_properties(ports, self.user, self.directory / "data")
        if self._is_secured:
            self._certificates.make()
            settings = secured_properties(settings, ports, self.user, self._certificates)
        settings |= self._settings
        file = self.directory / "server.properties"
        file.touch(mode=0o600)  # it holds a password
        file.write_text(as_properties(settings))
        (self.directory / "log4j2.properties").write_text(LOG4J)

    def _format(self) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        # Like Kafka's own ids, but a dash at the beginning would be read as an option.
        cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=").replace("-", "A")
        properties = str(self.directory / "server.properties")
        arguments = ["format", "-t", cluster, "-c", properties]
        if self._is_secured:
            users = self.directory / "scram-users"
            users.touch(mode=0o600)  # in a file, since every user can see a command line
            users.write_text("".join(f"{argument}\n" for argument in self.user.scram))
            arguments.append(f"@{users}")
        format_ = self._java("kafka.tools.StorageTool", *arguments)
        if format_.wait():
            found = tail(self.directory / "console.log")
            raise BrokerUnavailable(
                "Kafka's data directory can't be formatted",
                found=found,
                next_step=f"See the message above, and {self.directory}.",
            )

    @cached_property
    def _launcher(self) -> tuple[str, ...]:
        """The first words of the command line, the same for all of this broker's processes."""
        paths = jars(KAFKA_BROKER, notice=self._notice)
        return str(find_java().program), *self._class_options(paths[0].parent), "-cp", os.pathsep.join(map(str, paths))

    def _class_options(self, place: Path) -> tuple[str, ...]:
        """Java's options for a start from the class archive, which a machine's first broker makes (decision 0021)."""
        parts = [f"{place} {place.stat().st_mtime_ns}"]
        archive = archive_of("Kafka", parts, lambda options: _Archiving(options).write(), notice=self._notice)
        return () if archive is None else reading(archive)

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "console.log").open("wb") as console:
            return subprocess.Popen(  # noqa: S603 - our own command line
                [
                    *self._launcher,
                    f"-Xmx{self._heap}",
                    *QUICK.split(),
                    "-Djava.awt.headless=true",
                    f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
                    f"-Doffsetstore.log={self.log}",
                    main,
                    *arguments,
                ],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop the broker after its clients
            )

    def _end(self, how: signal.Signals, *, seconds: float = _STOP_SECONDS) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._call_off()


class _Archiving(KafkaBroker):
    """A broker that writes its classes into an archive as it ends."""

    def __init__(self, options: tuple[str, ...]) -> None:
        super().__init__()
        self._options = options

    def write(self) -> None:
        with self:
            self._end(signal.SIGTERM, seconds=ARCHIVE_SECONDS)

    def _class_options(self, place: Path) -> tuple[str, ...]:
        del place
        return self._options
