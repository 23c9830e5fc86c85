"""The command line, as an operator calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from tests.faults.chaos.harness.scene import Scene

_CLI: Final = "from offsetstore.cli.main import main; main()"


def offsetstore(scene: Scene, *arguments: str) -> str:
    environment = {**os.environ, "OFFSETSTORE_URL": scene.url}
    command = [sys.executable, "-c", _CLI, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
