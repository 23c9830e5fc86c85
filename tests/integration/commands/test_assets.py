from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import Result

ASSETS = files("offsetstore") / "assets"
FOLDERS = {"grafana": "grafana", "alerts": "prometheus", "kubernetes": "kubernetes", "systemd": "systemd"}

pytestmark = pytest.mark.behaviour("OPS-1")


def test_there_is_a_kind_for_each_folder() -> None:
    assert {one.name for one in ASSETS.iterdir()} == set(FOLDERS.values())


@pytest.mark.parametrize(("kind", "folder"), FOLDERS.items())
def test_the_files_are_written_and_named(run: Callable[..., Result], tmp_path: Path, kind: str, folder: str) -> None:
    out = tmp_path / "new" / "directory"
    result = run("assets", kind, "--out", str(out))
    shipped = {one.name: one.read_bytes() for one in (ASSETS / folder).iterdir()}
    assert result.exit_code == 0, result.output
    assert {one.name: one.read_bytes() for one in out.iterdir()} == shipped
    assert result.stdout.splitlines() == [str(out / name) for name in sorted(shipped)]


def test_what_is_there_is_overwritten_only_by_force(run: Callable[..., Result], tmp_path: Path) -> None:
    edited = tmp_path / "kubeflow-sparkapplication.yaml"
    edited.write_text("mine")
    refused = run("assets", "kubernetes", "--out", str(tmp_path))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert str(edited) in refused.stderr
    assert [one.read_text() for one in tmp_path.iterdir()] == ["mine"]

    assert run("assets", "kubernetes", "--out", str(tmp_path), "--force").exit_code == 0
    assert edited.read_text() != "mine"
