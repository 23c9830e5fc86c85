"""The file manager of a checkpoint with state, which must replace files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from offsetstore.errors import UnsupportedQuery
from offsetstore.spark.settings import MANAGER
from offsetstore.spark.stateful import _check_file_manager  # pyright: ignore[reportPrivateUsage] - pure

TUNED = "org.example.FileSystemBasedCheckpointFileManager"


@dataclass
class Execution:
    """As much of a query's execution as the check looks at."""

    root: str
    hadoop: dict[str, str] = field(default_factory=dict[str, str])

    def resolvedCheckpointRoot(self) -> str:  # noqa: N802 - Spark's name
        return self.root

    def sparkSession(self) -> Execution:  # noqa: N802 - Spark's name
        return self

    def sessionState(self) -> Execution:  # noqa: N802 - Spark's name
        return self

    def newHadoopConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self.hadoop


@pytest.mark.parametrize(
    ("root", "manager"), [("file:/kept", TUNED), ("s3a://bucket/kept", None), ("s3a://bucket/kept", "org.example.Own")]
)
def test_what_replaces_files_is_admitted(root: str, manager: str | None) -> None:
    given: Any = Execution(root, {MANAGER: manager} if manager else {})
    _check_file_manager(given)


def test_the_tuned_manager_is_refused_on_another_file_system() -> None:
    given: Any = Execution("s3a://bucket/kept", {MANAGER: TUNED})
    with pytest.raises(UnsupportedQuery, match=r"s3a://bucket/kept.*FileSystemBased.*Unset it"):
        _check_file_manager(given)
