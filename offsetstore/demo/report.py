"""What the demo leaves: a table in the terminal, ``report.json``, and ``report.html``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsetstore.demo.kills import WORDS
from offsetstore.demo.poison import KINDS
from offsetstore.demo.run import NAMES, Result, Results
from offsetstore.demo.tables import Findings

_SUBTITLES: Final = {
    "offsetstore": "results and offsets in one transaction",
    "at_least_once": "Spark's JDBC writer, then an upsert by hand, offsets in Spark's checkpoint",
}
_MUST_BE_ZERO: Final = frozenset({
    "missing", "duplicated", "wrong letters", "wrong sums", "missing events", "duplicated events", "wrong day totals"
})  # fmt: skip
_OF_LETTERS: Final = frozenset({"dead letters", "wrong letters"})
_HEADROOM: Final = 1.04
_TICKS: Final = 5
_STEPS: Final = (1, 2, 2.5, 5, 10)


def summary(produced: int, results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table at the end: what it counts, and a column for each job; ours is the first."""
    figures = [_figures(produced, result) for result in results.values()]
    has_letters = any(result.findings.letters for result in results.values())
    rows = [
        [name, *(f"{column[name]:,}" if name in column else "" for column in figures)]
        for name in figures[0]
        if has_letters or name not in _OF_LETTERS
    ]
    return ["", *(NAMES[job] for job in results)], rows


def _figures(produced: int, result: Result) -> dict[str, int]:
    found = {
        "produced": produced,
        "stored": result.findings.stored,
        "dead letters": result.findings.letters,
        "missing": result.findings.missing,
        "duplicated": result.findings.duplicated,
        "wrong letters": result.findings.wrong_letters,
        "wrong sums": result.findings.wrong_aggregates,
        "killed in mid-batch": result.kills_in_batch,
    }
    if (events := result.events) is not None:
        found |= {
            "events in Kafka": events.read,
            "missing events": events.missing,
            "duplicated events": events.duplicated,
            "wrong day totals": events.wrong_totals,
            "relay killed": len(result.relay_kills),
        }
    return found | {"seconds": round(result.run.seconds)}


def equation(produced: int, ours: Findings) -> str:
    """Say in a line where all flights are, if they are where they must be."""
    return f"{produced:,} flights = {ours.stored:,} landed + {ours.letters:,} dead letters, none twice"


def write_report(directory: Path, produced: int, results: Results, seed: int) -> Path:
    """Write both files, and return the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(as_json(produced, results, seed), indent=2) + "\n")
    page = directory / "report.html"
    page.write_text(as_html(produced, results, seed))
    return page


def as_json(produced: int, results: Results, seed: int) -> dict[str, Any]:
    """``produced``, ``kills`` with their evidence, and each job's figures."""
    ours = results.get("offsetstore")
    return {
        "produced": produced,
        "seed": seed,
        "kills": [kill.as_json() for result in results.values() for kill in result.run.kills],
        **{job: result.as_json() for job, result in results.items()},
        **({"looks_apart": ours.looks_apart} if ours else {}),
    }


def as_html(produced: int, results: Results, seed: int) -> str:
    """The page, whole."""
    looks = [look for result in results.values() for look in result.run.looks]
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
    return environment.get_template("report.html").render(
        produced=produced,
        seed=seed,
        results={"offsetstore": None, "at_least_once": None, **results},
        kills=[kill for result in results.values() for kill in result.run.kills],
        scale=scale,
        columns=columns,
        rows=rows,
        must_be_zero=_MUST_BE_ZERO,
        names=NAMES,
        subtitles=_SUBTITLES,
        points=WORDS,
        kinds=KINDS,
    )


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
        """From the left."""
        return round(self.left + (self.width - self.left - self.right) * at / self.seconds, 1)

    def y(self, landed: float) -> float:
        """From the top."""
        bottom = self.height - self.bottom
        return round(bottom - (bottom - self.top) * landed / self.flights, 1)


def ticks(largest: float) -> list[float]:
    """Return about five round numbers from 0 to at most ``largest``."""
    magnitude = 10.0 ** (len(str(int(largest / _TICKS))) - 1)
    step = next(step * magnitude for step in _STEPS if step * magnitude * _TICKS >= largest)
    return [number * step for number in range(int(largest / step) + 1)]
