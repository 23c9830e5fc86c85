"""The files for supervisors that are shipped in the package."""

from __future__ import annotations

import configparser
import re
from importlib.resources import files
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from offsetstore.cli.consume import consume
from offsetstore.cli.relay import relay
from offsetstore.errors import ExitCode, OutboxUncertain, RelayFenced, exit_code
from offsetstore.monitoring import Limits
from offsetstore.monitoring.processes import DRAIN
from offsetstore.monitoring.server import PORT

pytestmark = pytest.mark.behaviour("OPS-4")

ASSETS = files("offsetstore") / "assets"
MANIFESTS = {"kubeflow": ("driver", "template"), "apache": ("driverSpec", "podTemplateSpec")}

# What Debian 12's systemd 252 knows, of what the unit has; `systemd-analyze verify` only warns of others.
SYSTEMD_252 = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        "Type", "NotifyAccess", "TimeoutStartSec", "WatchdogSec", "User", "EnvironmentFile", "ExecStart", "Restart",
        "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "TimeoutStopSec",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
UNITS = {
    "job": SYSTEMD_252,
    "consumer": {
        **SYSTEMD_252, "Service": (SYSTEMD_252["Service"] - {"SuccessExitStatus"}) | {"WorkingDirectory", "KillMode"}
    },
    "relay": {
        **SYSTEMD_252,
        "Service": {
            "Type", "User", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "RestartPreventExitStatus",
        },
    },
}  # fmt: skip

# Of the operators' definitions of a SparkApplication, v1beta2 and v1.
FIELDS = {
    "kubeflow": {
        "type", "mode", "sparkVersion", "image", "mainApplicationFile", "restartPolicy", "driver", "executor",
    },
    "apache": {"pyFiles", "runtimeVersions", "sparkConf", "applicationTolerations", "driverSpec"},
}  # fmt: skip


def text_of(*path: str) -> str:
    return ASSETS.joinpath(*path).read_text(encoding="utf-8")


def manifest(name: str) -> Any:
    return yaml.safe_load(text_of("kubernetes", f"{name}.yaml"))


def pod_of(operator: str) -> Any:
    """The driver's pod in an operator's manifest."""
    found = manifest(f"{operator}-sparkapplication")["spec"]
    for key in MANIFESTS[operator]:
        found = found[key]
    return {"apiVersion": "v1", "kind": "Pod", **found}


def values_of(unit: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text_of("systemd", f"offsetstore-{unit}.service"), re.MULTILINE))


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_only_keys_that_its_systemd_knows(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as systemd, with upper and lower case
    unit.read_string(text_of("systemd", f"offsetstore-{name}.service"))
    assert {section: set(unit[section]) for section in unit.sections()} == UNITS[name]


@pytest.mark.parametrize("name", ["job", "consumer"])
def test_a_unit_agrees_with_what_it_runs_on_times_and_exit_codes(name: str) -> None:
    values = values_of(name)
    assert float(values["TimeoutStartSec"]) > Limits().starting
    assert (values["Type"], values["Restart"]) == ("notify", "on-failure")
    kept = {int(code) for code in values["RestartPreventExitStatus"].split()}
    assert kept == ({ExitCode.USAGE, ExitCode.FENCED} if name == "consumer" else {ExitCode.FENCED})


def test_the_units_say_who_speaks_to_systemd_and_who_is_sent_sigterm() -> None:
    job, consumer = map(values_of, ("job", "consumer"))
    assert (job["NotifyAccess"], int(job["SuccessExitStatus"])) == ("all", 143)
    assert (consumer["NotifyAccess"], consumer["KillMode"]) == ("main", "mixed")
    assert float(consumer["TimeoutStopSec"]) > DRAIN


@pytest.mark.behaviour("OUT-4")
def test_the_unit_of_a_relay_leaves_alone_what_a_person_or_another_relay_has_to_end() -> None:
    values = values_of("relay")
    _, name, *given = values["ExecStart"].split()
    assert name == "relay"
    relay.make_context("relay", [*given, "-b", "localhost:9092", "--url", "postgresql://"])
    kept = {int(code) for code in values["RestartPreventExitStatus"].split()}
    assert kept == {exit_code(OutboxUncertain("")), exit_code(RelayFenced(""))} == {ExitCode.NO, ExitCode.FENCED}


@pytest.mark.behaviour("OUT-4")
def test_the_statefulset_of_a_relay_is_one_by_kubernetes_own_schema_and_runs_one() -> None:
    made = manifest("relay-statefulset")
    kubernetes_validate.validate(made, "1.29", strict=True)
    assert (made["kind"], made["spec"]["replicas"]) == ("StatefulSet", 1)
    [container] = made["spec"]["template"]["spec"]["containers"]
    _, name, *given = container["args"]
    assert name == "relay"
    relay.make_context("relay", [*given, "-b", "localhost:9092", "--url", "postgresql://"])
    assert {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"} == {one["name"] for one in container["env"]}


@pytest.mark.behaviour("CONS-11")
def test_what_the_unit_and_the_deployment_of_a_consumer_run_is_a_command_of_ours() -> None:
    """click parses it, and no more."""
    command = values_of("consumer")["ExecStart"].split()
    [container] = manifest("consumer-deployment")["spec"]["template"]["spec"]["containers"]
    for _, name, *given in (command, ["", *container["args"][1:]]):
        assert name == "consume"
        made = consume.make_context("consume", given)
        assert (made.params["function"], made.params["port"]) == ("billing_app:consumer", PORT)
    assert {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"} == {one["name"] for one in container["env"]}


@pytest.mark.behaviour("CONS-11")
def test_the_deployment_of_a_consumer_is_one_by_kubernetes_own_schema_and_stops_in_order() -> None:
    made = manifest("consumer-deployment")
    kubernetes_validate.validate(made, "1.29", strict=True)
    pod = made["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN
    [container] = pod["containers"]
    [driver] = manifest("driver-pod-template")["spec"]["containers"]
    for name in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name] == driver[name]


@pytest.mark.parametrize("pod", [manifest("driver-pod-template"), *map(pod_of, MANIFESTS)], ids=["pod", *MANIFESTS])
def test_each_pod_is_one_by_kubernetes_own_schema_and_asks_the_probes(pod: Any) -> None:
    kubernetes_validate.validate(pod, "1.29", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**pod, "spec": {**pod["spec"], "container": []}}, "1.29", strict=True)

    [driver] = pod["spec"]["containers"]
    assert driver["name"] == "spark-kubernetes-driver"
    assert driver["ports"] == [{"name": "monitoring", "containerPort": PORT}]
    probes = {name: driver[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    live, ready = ({"path": path, "port": "monitoring"} for path in ("/livez", "/readyz"))
    assert probes == {"startup": live, "liveness": live, "readiness": ready}


@pytest.mark.parametrize("operator", MANIFESTS)
def test_the_operators_manifests_have_the_pod_of_the_template(operator: str) -> None:
    assert pod_of(operator)["spec"] == manifest("driver-pod-template")["spec"]


@pytest.mark.parametrize(
    ("operator", "version"), [("kubeflow", "sparkoperator.k8s.io/v1beta2"), ("apache", "spark.apache.org/v1")]
)
def test_the_manifests_start_a_failed_job_again(operator: str, version: str) -> None:
    made = manifest(f"{operator}-sparkapplication")
    assert (made["apiVersion"], made["kind"]) == (version, "SparkApplication")
    spec = made["spec"]
    assert spec.keys() == FIELDS[operator]
    if operator == "kubeflow":
        assert spec["restartPolicy"]["type"] == "OnFailure"
        assert spec["restartPolicy"]["onFailureRetries"] < 2**31
    else:
        restarts = spec["applicationTolerations"]["restartConfig"]
        assert (restarts["restartPolicy"], restarts["maxRestartAttempts"] < 2**31) == ("OnFailure", True)
        assert all(isinstance(value, str) for value in spec["sparkConf"].values())
