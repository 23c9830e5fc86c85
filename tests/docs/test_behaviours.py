from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviours import Proof, collect_proofs, read_texts, render

ROOT = Path(__file__).parents[2]


def test_the_page_of_behaviours_is_up_to_date(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
    if page == render(read_texts(), collect_proofs(request.session.items)):
        return  # a whole run has collected every test already
    fresh = tmp_path / "behaviours.md"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-o", f"cache_dir={tmp_path}"]
    command += [f"--behaviours={fresh}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert page == fresh.read_text(encoding="utf-8"), "run `make behaviours`"


def test_ids_belong_to_their_area_and_count_up_from_one() -> None:
    """Those that are left out have no test yet: they are not promised."""
    for area, behaviours in read_texts().items():
        prefix = area.partition(":")[0]
        numbers = [int(one.removeprefix(f"{prefix}-")) for one in behaviours]
        assert numbers == sorted({1, *numbers})


def test_tests_are_listed_with_their_services_and_the_rest_as_not_yet_proven() -> None:
    texts = {"TX: both": {"TX-1": "Together | or not.", "TX-2": "Left as they were."}}
    proofs = [Proof("TX-1", "a.py::one", frozenset({"PostgreSQL", "Kafka"})), Proof("TX-1", "b.py::two", frozenset())]
    proofs.append(Proof("TX-1", "c.py::C::three", frozenset({"PostgreSQL"}), ("TestMemory", "TestPostgres")))

    lines = render(texts, proofs).splitlines()

    assert "| TX-1 | Together \\| or not. | `a.py::one` | Kafka, PostgreSQL |" in lines
    assert "|  |  | `b.py::two` | none |" in lines
    assert "|  |  | `c.py::C::three` in `TestMemory`, `TestPostgres` | PostgreSQL |" in lines
    assert lines[-3:] == ["## Not yet proven", "", "- TX-2: Left as they were."]


def test_a_mark_with_an_unknown_id_stops_the_run(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.behaviour("TX-999"))
    with pytest.raises(pytest.UsageError, match="TX-999"):
        collect_proofs([request.node])
