from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tests.integration.commands.conftest import Run

FOLDERS = {"grafana": "grafana", "alerts": "prometheus", "kubernetes": "kubernetes", "systemd": "systemd"}


@pytest.mark.behaviour("OPS-1")
def test_the_files_of_each_kind_are_written_and_named_and_overwritten_only_by_force(run: Run, tmp_path: Path) -> None:
    assets = files("offsetstore") / "assets"
    assert {one.name for one in assets.iterdir()} == set(FOLDERS.values())
    for kind, folder in FOLDERS.items():
        out = tmp_path / "new" / kind
        shipped = {one.name: one.read_bytes() for one in (assets / folder).iterdir()}
        assert run.lines("assets", kind, "--out", str(out)) == [str(out / name) for name in sorted(shipped)]
        edited = out / min(shipped)
        edited.write_text("mine")
        assert str(edited) in run.fail(2, "assets", kind, "--out", str(out))
        assert edited.read_text() == "mine"
        run.lines("assets", kind, "--out", str(out), "--force")
        assert {one.name: one.read_bytes() for one in out.iterdir()} == shipped
