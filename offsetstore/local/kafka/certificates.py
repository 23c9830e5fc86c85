"""Certificates for a broker on the loopback, made by Java's keytool: an authority, a server's and a client's."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from offsetstore.errors import BrokerUnavailable, MissingDependency
from offsetstore.local.free_ports import LOOPBACK
from offsetstore.local.spark.java import find_java

_PASSWORD = "OFFSETSTORE_KEYTOOL_PASSWORD"  # noqa: S105 - the variable that passes it on
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where they are. All Java stores have one password; the directory's mode keeps others out."""

    directory: Path
    password: str = "offsetstore"  # noqa: S105

    @property
    def authority_pem(self) -> Path:
        """The authority's certificate, as librdkafka and OpenSSL read it."""
        return self.directory / "ca.pem"

    @property
    def truststore(self) -> Path:
        """The same in PKCS12, as Java reads it."""
        return self.directory / "truststore.p12"

    @property
    def old_truststore(self) -> Path:
        """The same in Java's older format, JKS."""
        return self.directory / "truststore.jks"

    @property
    def server(self) -> Path:
        """The server's certificate and key, in PKCS12."""
        return self.directory / "server.p12"

    @property
    def client(self) -> Path:
        """The same of a client."""
        return self.directory / "client.p12"

    def make(self) -> None:
        """Make the missing ones. Only its owner can enter the directory.

        :raises BrokerUnavailable: keytool fails; with its message.
        :raises MissingDependency: no Java, or one without keytool.
        """
        if self.client.exists():
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = ("-keystore", "all.p12")
        key = ("-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "365")
        self._keytool(*key, "-alias", "ca", "-dname", "CN=offsetstore authority", "-ext", "bc:critical=ca:true")
        names = ("-ext", f"san=ip:{LOOPBACK},dns:localhost")
        self._keytool(*key, "-alias", "server", "-dname", "CN=localhost", "-signer", "ca", *names)
        self._keytool(*key, "-alias", "client", "-dname", "CN=client", "-signer", "ca")
        authority = str(self.authority_pem)
        self._keytool("-exportcert", "-rfc", *store, "-alias", "ca", "-file", authority)
        for truststore, kind in ((self.truststore, "PKCS12"), (self.old_truststore, "JKS")):
            kept = ("-keystore", str(truststore), "-storetype", kind)
            self._keytool("-importcert", "-noprompt", "-alias", "ca", "-file", authority, *kept)
        for alias, keystore in (("server", self.server), ("client", self.client)):
            source = ("-srckeystore", "all.p12", "-srcstorepass:env", _PASSWORD, "-srcalias", alias)
            self._keytool("-importkeystore", *source, "-destkeystore", str(keystore), store="deststorepass")

    def _keytool(self, *arguments: str, store: str = "storepass") -> None:
        keytool = find_java().keytool
        try:
            done = subprocess.run(  # noqa: S603 - our own command line
                [keytool, "-J-XX:TieredStopAtLevel=1", *arguments, f"-{store}:env", _PASSWORD],
                cwd=self.directory,
                env={**os.environ, _PASSWORD: self.password},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
        except FileNotFoundError:
            raise MissingDependency(
                "this Java has no keytool to make certificates with",
                found=keytool,
                next_step="Set JAVA_HOME to a complete Java runtime.",
            ) from None
        if done.returncode:
            raise BrokerUnavailable(
                "could not make the broker's certificates",
                found=(done.stdout + done.stderr).strip(),
                next_step=f"See the message above: it is {keytool}'s.",
            )
