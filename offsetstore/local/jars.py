"""The jars that the local stack needs: which, and their download, once, with nothing but Java and pyspark's own Ivy."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from offsetstore.errors import MissingDependency
from offsetstore.lazy import how_to_install
from offsetstore.local import Notice, cache_directory, locked, notices
from offsetstore.local.java import find_java

SCALA = "2.13"
"""The Scala version that pyspark's own jars are built for; the connector's must be the same."""

KAFKA_VERSION = "4.2.2"
"""Not 4.3.0 to 4.4.0: these can lose the end of a transaction when they restart (decision 0098)."""

SPARK_VERSION = "4.2.0"
"""The version that we test with. Its connector must have the same version."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One artifact; ``transitive`` ones bring their dependencies."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that go onto one class path.

    ``overrides`` replace revisions that dependencies ask for. ``excluded`` has pairs of organisation and module: the
    program that loads the jars already has these.
    """

    name: str
    artifacts: tuple[Artifact, ...]
    overrides: tuple[Artifact, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()

    def ivy(self) -> str:
        """Return the set as an Ivy file."""
        dependencies = "".join(
            f"<dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} rev={quoteattr(a.revision)}"
            + (' conf="default->default"/>' if a.transitive else ' conf="default->master" transitive="false"/>')
            for a in self.artifacts
        )
        excludes = "".join(
            f"<exclude org={quoteattr(org)} module={quoteattr(module)}/>" for org, module in self.excluded
        )
        overrides = "".join(
            f"<override org={quoteattr(a.organisation)} module={quoteattr(a.name)} rev={quoteattr(a.revision)}/>"
            for a in self.overrides
        )
        return (
            f'<ivy-module version="2.0"><info organisation="offsetstore" module={quoteattr(self.name)}/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}{excludes}{overrides}</dependencies></ivy-module>"
        )

    @property
    def directory_name(self) -> str:
        """A name that depends on the content, so that no other version finds this one's jars."""
        return f"{self.name}-{hashlib.sha256(self.ivy().encode()).hexdigest()[:12]}"


KAFKA_BROKER = JarSet(
    "kafka-broker",
    (
        Artifact("org.apache.kafka", f"kafka_{SCALA}", KAFKA_VERSION),
        # Kafka's jars log through SLF4J 1.7 and bring log4j, but not the bridge between the two.
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", transitive=False),
    ),
)


def spark_kafka_connector(spark_version: str = SPARK_VERSION) -> JarSet:
    """Return what Spark needs to read Kafka, on top of pyspark's own jars."""
    return JarSet(
        "spark-kafka-connector",
        (Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", spark_version),),
        # The token provider of 4.2.0 is not available everywhere; that of 4.0.0 is, and works.
        overrides=(Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", "4.0.0"),),
        # pyspark has these among its own jars, in these versions.
        excluded=(
            ("org.apache.hadoop", "*"),
            ("org.apache.spark", f"spark-tags_{SCALA}"),
            ("org.scala-lang", "*"),
            ("org.scala-lang.modules", "*"),
            ("org.slf4j", "*"),
            ("org.xerial.snappy", "*"),
            ("at.yawk.lz4", "*"),
            ("com.google.code.findbugs", "*"),
        ),
    )


def earlier_connectors(spark_version: str) -> list[JarSet]:
    """The connectors of earlier releases of the same minor version, the latest first: they work with it, too."""
    minor, _, patch = spark_version.rpartition(".")
    return [
        spark_kafka_connector(f"{minor}.{number}") for number in reversed(range(int(patch) if patch.isdigit() else 0))
    ]


POSTGRES_JDBC = JarSet("postgres-jdbc", (Artifact("org.postgresql", "postgresql", "42.7.14", transitive=False),))

_MANIFEST = "manifest.json"
_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"
_CONNECT_MS, _READ_MS = 20_000, 60_000
_SHOWN_LINES = 5
_CANT_DOWNLOAD = (
    "Check the network (a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...'), or set "
    "OFFSETSTORE_IVY_SETTINGS to an Ivy settings file that names a repository you can reach; then try again."
)
_LOOKED_UP_STEP = 10


def jars(jar_set: JarSet, *, instead: Sequence[JarSet] = (), notice: Notice | None = None) -> tuple[Path, ...]:
    """Return the jars' paths, sorted; download them if they are not in the cache.

    If two processes ask at once, only one downloads. A set is in the cache as a whole or not at all.

    :param instead: sets to try in this order if ``jar_set`` can't be downloaded; kept in its place.
    :param notice: gets the progress of the download in words; printed to the terminal if not given.
    :raises MissingDependency: no Java, no Ivy, or the download fails.
    """
    target = cache_directory() / "jars" / jar_set.directory_name
    if (found := _whole(target)) is not None:
        return found
    with locked(target.parent / "lock"):
        if (found := _whole(target)) is None:
            with notices(notice) as tell:
                _download_first([jar_set, *instead], target, tell)
            found = _whole(target)
    assert found is not None
    return found


def _whole(target: Path) -> tuple[Path, ...] | None:
    """Return the set's jars if each has its full size."""
    try:
        sizes: dict[str, int] = json.loads((target / _MANIFEST).read_text())
        whole = all((target / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return tuple(target / name for name in sorted(sizes)) if whole else None


def _download_first(jar_sets: Sequence[JarSet], target: Path, notice: Notice) -> None:
    wanted = jar_sets[0]
    failed: MissingDependency | None = None
    for jar_set in jar_sets:
        if failed is not None:
            notice(
                f"{wanted.name}: {wanted.artifacts[0].revision} is unavailable, trying {jar_set.artifacts[0].revision}"
            )
        try:
            _download(jar_set, target, notice)
        except MissingDependency as error:
            failed = failed or error
        else:
            return
    assert failed is not None
    raise failed


def _download(jar_set: JarSet, target: Path, notice: Notice) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{jar_set.name}-", dir=target.parent))
    try:
        descriptor = work / "ivy.xml"
        descriptor.write_text(jar_set.ivy())
        new = work / "jars"
        _run_ivy(jar_set, descriptor, new, notice)
        sizes = {jar.name: jar.stat().st_size for jar in new.glob("*.jar")}
        (new / _MANIFEST).write_text(json.dumps(sizes, indent=1, sort_keys=True))
        shutil.rmtree(target, ignore_errors=True)  # a damaged set may be there
        new.rename(target)
        notice(f"{jar_set.name}: {len(sizes)} jars, {sum(sizes.values()) / 1e6:.0f} MB")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(jar_set: JarSet, descriptor: Path, into: Path, notice: Notice) -> None:
    command = [
        str(find_java().program),
        f"-Dsun.net.client.defaultConnectTimeout={_CONNECT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_READ_MS}",
        "-jar",
        str(_ivy_jar()),
        "-ivy",
        str(descriptor),
        "-confs",
        "default",
        "-cache",
        str(cache_directory() / "ivy"),
        "-retrieve",
        f"{into}/{_PATTERN}",
    ]
    if settings := os.environ.get("OFFSETSTORE_IVY_SETTINGS"):
        command += ["-settings", str(Path(settings).expanduser())]
    notice(f"{jar_set.name}: looking up what is needed")
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our own command line
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        try:
            _tell(jar_set, ivy.stdout, lines, notice)
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode or not into.is_dir():
        missing = [match[1] for line in lines if (match := re.fullmatch(r"\s*:: (\S+#\S.*)", line))]
        raise MissingDependency(
            f"the jars of {jar_set.name} can't be downloaded",
            found="\n".join(list(dict.fromkeys(missing))[:_SHOWN_LINES] or lines[-_SHOWN_LINES:]),
            expected=", ".join(f"{a.organisation}:{a.name}:{a.revision}" for a in jar_set.artifacts),
            next_step=_CANT_DOWNLOAD,
        )


def _tell(jar_set: JarSet, output: Iterable[str], lines: list[str], notice: Notice) -> None:
    # Ivy names each jar that it has; how many there are is known only after all were looked up.
    looked_up = downloaded = 0
    for line in output:
        lines.append(line.rstrip())
        if re.match(r"\s*found \S+ in ", line):
            looked_up += 1
            if looked_up % _LOOKED_UP_STEP == 0:
                notice(f"{jar_set.name}: looking up what is needed, {looked_up} so far")
        elif jar := re.match(r"\s*\[SUCCESSFUL \] \S+?#\S+!(\S+)", line):
            downloaded += 1
            notice(f"{jar_set.name}: {downloaded} of {looked_up} downloaded, {jar[1]}")


def pyspark_directories() -> list[Path]:
    """Where pyspark is installed, found without importing it; empty if it is not."""
    spec = find_spec("pyspark")
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _ivy_jar() -> Path:
    """Find Ivy's jar in pyspark, without importing it.

    :raises MissingDependency: pyspark is not installed, or has no Ivy.
    """
    places = pyspark_directories()
    for place in places:
        if found := sorted((place / "jars").glob("ivy-*.jar")):
            return found[-1]
    raise MissingDependency(
        "could not find Ivy, which comes with pyspark",
        found=places or "no pyspark",
        next_step=how_to_install("local"),
    )
