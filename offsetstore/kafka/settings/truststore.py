"""Java's truststores that librdkafka can't read: keystores in the formats JKS and PKCS12."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NoReturn

from offsetstore.errors import ConfigurationError

_KEY: Final = "kafka.ssl.truststore.location"
_PASSWORD: Final = "OFFSETSTORE_TRUSTSTORE_PASSWORD"  # noqa: S105 - the variable that keytool gets it in
_SECONDS: Final = 30
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_JKS: Final = b"\xfe\xed\xfe\xed"
_PKCS12: Final = b"\x30"  # ASN.1, a sequence


def authorities(location: str, password: str | None) -> str:
    """Read a truststore's authorities with Java's keytool, as PEM. As in Java, the format is detected.

    :raises ConfigurationError: no such file, no keytool, a wrong password, no certificate. Never shows the password.
    """
    if not Path(location).is_file():
        _refuse("there is no such file on this machine")
    keytool = _keytool()
    if keytool is None:
        _refuse("librdkafka can't read Java's truststores, and there is no keytool to convert it")
    # In English, since what it prints is parsed below.
    command = [keytool, "-J-Duser.language=en", "-list", "-rfc", "-keystore", location]
    environment = dict(os.environ)
    if password is not None:
        # By the environment: every user can see a command line.
        command += ["-storepass:env", _PASSWORD]
        environment[_PASSWORD] = password
    try:
        done = subprocess.run(  # noqa: S603 - Java's own program
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        _refuse("keytool could not be run")
    if done.returncode:
        said = re.search(r"^keytool error: (.*)", done.stdout, re.MULTILINE)
        _refuse(f"keytool can't read it{f' ({said[1]})' if said and not _holds(said[1], password) else ''}")
    entries = re.split(r"^Alias name: ", done.stdout, flags=re.MULTILINE)[1:]
    # An entry with a key has a chain: Java trusts the key's own certificate, which comes first, and so do we.
    certificates = [match[0] for entry in entries if (match := _CERTIFICATE.search(entry))]
    if not certificates:
        _refuse("it shows no certificate; a PKCS12 store shows none without its password")
    return "\n".join(certificates) + "\n"


def keystore_format(location: str) -> str | None:
    """Detect the file's own format: ``JKS``, ``PKCS12`` or neither. Java reads both, whichever the type says."""
    try:
        with Path(location).open("rb") as file:
            start = file.read(len(_JKS))
    except OSError:
        return None
    if start == _JKS:
        return "JKS"
    return "PKCS12" if start.startswith(_PKCS12) else None


def _keytool() -> Path | None:
    """Find keytool beside the Java that Spark uses: JAVA_HOME's, then PATH's."""
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    directories = [Path(home) / "bin"] if home else []
    if java:
        directories += [Path(java).parent, Path(java).resolve().parent]
    names = (str(directory / "keytool") for directory in directories)
    return next((Path(program) for name in names if (program := shutil.which(name))), None)


def _holds(text: str, password: str | None) -> bool:
    return bool(password) and password in text


def _refuse(what: str) -> NoReturn:
    raise ConfigurationError(
        f"{_KEY}: {what}",
        expected="a truststore that can be read where the job starts, and ssl.truststore.password",
        next_step=(
            "Correct it, or export the authorities with `keytool -exportcert -rfc -alias … -keystore … -file ca.pem`, "
            "and give Spark and the Broker kafka.ssl.truststore.type=PEM and that file."
        ),
    )
