"""The files for supervisors that are shipped in the package."""

from __future__ import annotations

import configparser
import re
from importlib.resources import files
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from offsetstore.errors import ExitCode
from offsetstore.monitoring import Limits
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


def test_the_unit_has_only_keys_that_its_systemd_knows() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as systemd, with upper and lower case
    unit.read_string(text_of("systemd", "offsetstore-job.service"))
    assert {section: set(unit[section]) for section in unit.sections()} == SYSTEMD_252


def test_the_unit_agrees_with_the_job_on_times_and_exit_codes() -> None:
    values = dict(re.findall(r"^(\w+)=(.*)$", text_of("systemd", "offsetstore-job.service"), re.MULTILINE))
    assert float(values["TimeoutStartSec"]) > Limits().starting
    assert (values["Type"], values["NotifyAccess"], values["Restart"]) == ("notify", "all", "on-failure")
    assert int(values["RestartPreventExitStatus"]) == ExitCode.FENCED
    assert int(values["SuccessExitStatus"]) == 143


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
