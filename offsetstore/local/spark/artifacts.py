"""The Java artifacts that the local stack needs, by name and version. Ivy knows where to download them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

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
