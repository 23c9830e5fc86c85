"""The files for supervisors that are shipped in the package."""

from __future__ import annotations

import configparser
import re
from importlib.resources import files
from typing import Any

import click
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
ADDRESSES = {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"}
MANIFESTS = {"kubeflow": ("driver", "template"), "apache": ("driverSpec", "podTemplateSpec")}

# What Debian 12's systemd 252 knows, of what the units have; `systemd-analyze verify` only warns of others.
SYSTEMD_252 = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        "Type", "NotifyAccess", "TimeoutStartSec", "WatchdogSec", "User", "EnvironmentFile", "ExecStart", "Restart",
        "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "TimeoutStopSec", "WorkingDirectory", "KillMode",
    },
    "Install": {"WantedBy"},
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


def expect_valid(made: Any) -> None:
    """Expect what Kubernetes' own schema allows."""
    kubernetes_validate.validate(made, "1.29", strict=True)


def context_of(command: click.Command, words: list[str], *more: str) -> click.Context:
    """Expect that click parses what is run, and no more."""
    _, name, *given = words
    assert name == command.name
    return command.make_context(name, [*given, *more])


@pytest.mark.parametrize("name", ["job", "consumer", "relay"])
def test_a_unit_has_only_keys_that_its_systemd_knows(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as systemd, with upper and lower case
    unit.read_string(text_of("systemd", f"offsetstore-{name}.service"))
    assert unit.sections() == [*SYSTEMD_252]
    assert [key for section, known in SYSTEMD_252.items() for key in unit[section] if key not in known] == []


def test_the_units_agree_with_what_they_run_on_times_exit_codes_and_signals() -> None:
    job, consumer = map(values_of, ("job", "consumer"))
    for values, kept in ((job, {ExitCode.FENCED}), (consumer, {ExitCode.USAGE, ExitCode.FENCED})):
        assert float(values["TimeoutStartSec"]) > Limits().starting
        assert (values["Type"], values["Restart"]) == ("notify", "on-failure")
        assert {int(code) for code in values["RestartPreventExitStatus"].split()} == kept
    assert (job["NotifyAccess"], int(job["SuccessExitStatus"])) == ("all", 143)
    assert (consumer["NotifyAccess"], consumer["KillMode"]) == ("main", "mixed")
    assert float(consumer["TimeoutStopSec"]) > DRAIN


@pytest.mark.behaviour("OUT-4")
def test_of_a_relay_one_runs_and_what_a_person_or_another_relay_has_to_end_is_left_alone() -> None:
    values, made = values_of("relay"), manifest("relay-statefulset")
    kept = {int(code) for code in values["RestartPreventExitStatus"].split()}
    assert kept == {exit_code(OutboxUncertain("")), exit_code(RelayFenced(""))} == {ExitCode.NO, ExitCode.FENCED}
    expect_valid(made)
    assert (made["kind"], made["spec"]["replicas"]) == ("StatefulSet", 1)
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"} == {one["name"] for one in container["env"]}
    for words in (values["ExecStart"].split(), container["args"]):
        context_of(relay, words, "-b", "localhost:9092", "--url", "postgresql://")


@pytest.mark.behaviour("CONS-11")
def test_the_unit_and_the_deployment_of_a_consumer_run_a_command_of_ours_and_stop_in_order() -> None:
    made = manifest("consumer-deployment")
    expect_valid(made)
    pod = made["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN
    [container] = pod["containers"]
    [driver] = manifest("driver-pod-template")["spec"]["containers"]
    for name in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name] == driver[name]
    for words in (values_of("consumer")["ExecStart"].split(), container["args"]):
        params = context_of(consume, words).params
        assert (params["function"], params["port"]) == ("billing_app:consumer", PORT)
    assert {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"} == {one["name"] for one in container["env"]}


def test_the_operators_manifests_have_the_pod_of_the_template_which_asks_the_probes() -> None:
    pod = manifest("driver-pod-template")
    for operator in MANIFESTS:
        expect_valid(pod_of(operator))
        assert pod_of(operator)["spec"] == pod["spec"]
    with pytest.raises(kubernetes_validate.ValidationError):
        expect_valid({**pod, "spec": {**pod["spec"], "container": []}})

    [driver] = pod["spec"]["containers"]
    assert driver["name"] == "spark-kubernetes-driver"
    assert driver["ports"] == [{"name": "monitoring", "containerPort": PORT}]
    probes = {name: driver[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    live, ready = ({"path": path, "port": "monitoring"} for path in ("/livez", "/readyz"))
    assert probes == {"startup": live, "liveness": live, "readiness": ready}


def test_the_manifests_start_a_failed_job_again() -> None:
    specs: dict[str, Any] = {}
    for operator, version in {"kubeflow": "sparkoperator.k8s.io/v1beta2", "apache": "spark.apache.org/v1"}.items():
        made = manifest(f"{operator}-sparkapplication")
        assert (made["apiVersion"], made["kind"]) == (version, "SparkApplication")
        specs[operator] = made["spec"]
    assert {operator: {*spec} for operator, spec in specs.items()} == FIELDS
    policy = specs["kubeflow"]["restartPolicy"]
    assert (policy["type"], policy["onFailureRetries"] < 2**31) == ("OnFailure", True)
    restarts = specs["apache"]["applicationTolerations"]["restartConfig"]
    assert (restarts["restartPolicy"], restarts["maxRestartAttempts"] < 2**31) == ("OnFailure", True)
    assert all(isinstance(value, str) for value in specs["apache"]["sparkConf"].values())
