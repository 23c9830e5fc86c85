"""A deploy: the wheel in an environment of its own, and nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import SchemaMissing


def offsetstore(python: Path, url: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a deploy does: by its name, with the URL in the environment."""
    environment = {"OFFSETSTORE_URL": url, "PATH": os.environ["PATH"], "HOME": str(cwd)}
    command = [str(python.with_name("offsetstore")), *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.behaviour("START-17")
def test_the_wheel_alone_migrates_a_database(wheel_venv: Path, offsetstore_empty_database: str, tmp_path: Path) -> None:
    url = offsetstore_empty_database
    with pytest.raises(SchemaMissing, match="offsetstore migrate"):
        OffsetStore.connect(url)
    assert offsetstore(wheel_venv, url, tmp_path, "migrate", "--check").returncode == 1
    migrated = offsetstore(wheel_venv, url, tmp_path, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert offsetstore(wheel_venv, url, tmp_path, "migrate", "--check").returncode == 0
    with OffsetStore.connect(url) as store:
        assert store.offsets("billing") == {}


@pytest.mark.parametrize(
    ("command", "extra"), [("demo", "demo"), ("resolve -g billing -t payments -b localhost:1 --no-store", "kafka")]
)
def test_what_needs_another_extra_says_which(wheel_venv: Path, tmp_path: Path, command: str, extra: str) -> None:
    failed = offsetstore(wheel_venv, "", tmp_path, *command.split())
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert f"offsetstore[{extra}]" in failed.stderr
