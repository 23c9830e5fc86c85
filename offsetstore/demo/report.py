"""What the demo leaves: a table in the terminal, ``report.json``, and ``report.html``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsetstore.demo.flights import KINDS
from offsetstore.demo.kills import JOBS, WORDS, JobResult
from offsetstore.demo.run import Results

_JOBS: Final = {job.name: job for job in JOBS}
_MUST_BE_ZERO: Final = frozenset({"missing", "duplicated", "wrong letters", "wrong sums"})
_HEADROOM: Final = 1.04
_TICKS: Final = 5
_STEPS: Final = (1, 2, 2.5, 5, 10)


def summary(produced: int, results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table at the end: what is counted, and a column for each job, ours first."""
    figures = [_figures(produced, result) for result in results.values()]
    has_letters = any(result.findings.letters for result in results.values())
    rows = [
        [name, *(f"{column[name]:,}" for column in figures)]
        for name in figures[0]
        if has_letters or "letters" not in name
    ]
    return ["", *(_JOBS[name].title for name in results)], rows


def _figures(produced: int, result: JobResult) -> dict[str, int]:
    return {
        "produced": produced,
        "stored": result.findings.stored,
        "dead letters": result.findings.letters,
        "missing": result.findings.missing,
        "duplicated": result.findings.duplicated,
        "wrong letters": result.findings.wrong_letters,
        "wrong sums": result.findings.wrong_aggregates,
        "killed in mid-batch": result.kills_in_batch,
        "seconds": round(result.seconds),
    }


def write_report(directory: Path, produced: int, results: Results, seed: int) -> Path:
    """Write both files, and return the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    kills = [kill for result in results.values() for kill in result.kills]
    ours = results.get("offsetstore")
    report: dict[str, Any] = {
        "produced": produced,
        "seed": seed,
        "kills": [asdict(kill) for kill in kills],
        **{job: result.as_json() for job, result in results.items()},
        **({"looks_apart": ours.looks_apart} if ours else {}),
    }
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    looks = [look for result in results.values() for look in result.looks]
    scale = Scale(max(look.at for look in looks), round(_HEADROOM * max(produced, *(look.passed for look in looks))))
    columns, rows = summary(produced, results)
    environment = Environment(
        loader=PackageLoader("offsetstore.demo", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    filters: dict[str, Any] = {"number": "{:,.0f}".format, "ticks": ticks}
    environment.filters.update(filters)
    text = environment.get_template("report.html").render(
        produced=produced,
        seed=seed,
        results={**dict.fromkeys(_JOBS), **results},
        kills=kills,
        scale=scale,
        columns=columns,
        rows=rows,
        must_be_zero=_MUST_BE_ZERO,
        jobs=_JOBS,
        points=WORDS,
        kinds=KINDS,
    )
    page = directory / "report.html"
    page.write_text(text)
    return page


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts seconds and flights to the picture's points; both jobs share it, to be compared."""

    seconds: float
    flights: int
    width: ClassVar = 960
    height: ClassVar = 300
    left: ClassVar = 64
    right: ClassVar = 150
    top: ClassVar = 40
    bottom: ClassVar = 34

    def x(self, at: float) -> float:
        return round(self.left + (self.width - self.left - self.right) * at / self.seconds, 1)

    def y(self, landed: float) -> float:
        bottom = self.height - self.bottom
        return round(bottom - (bottom - self.top) * landed / self.flights, 1)


def ticks(largest: float) -> list[float]:
    """Return about five round numbers from 0 to at most ``largest``."""
    magnitude = 10.0 ** (len(str(int(largest / _TICKS))) - 1)
    step = next(step * magnitude for step in _STEPS if step * magnitude * _TICKS >= largest)
    return [number * step for number in range(int(largest / step) + 1)]
