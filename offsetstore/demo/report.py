"""What the demo leaves: a table in the terminal, ``report.json``, and ``report.html``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from offsetstore.demo.kills import WORDS, Killed
from offsetstore.demo.poison import KINDS
from offsetstore.demo.run import NAMES, Result, Results
from offsetstore.demo.tables import Findings, Look

_SUBTITLES: Final = {
    "offsetstore": "results and offsets in one transaction",
    "at_least_once": "Spark's JDBC writer, then an upsert by hand, offsets in Spark's checkpoint",
}
_OURS: Final = (
    "offsetstore commits the flights, the sums and the offsets together. What a kill left undone was rolled back, and "
    "each start asks the database how far it is: the line goes on where it stood, and ends at what was produced."
)
_THEIRS: Final = (
    "The job that people write today learns from its checkpoint that the batch is not done, and writes it again: what "
    "it had written before the kill stays, and the line ends above what was produced."
)
_LETTERS: Final = (
    "{letters:,} of the flights are broken, each in one of {count} ways: {kinds}. They are dead letters, with what the "
    "producer sent; each was written in the transaction that passed over its record."
)
_HEADROOM: Final = 1.04


def summary(produced: int, results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table at the end: what it counts, and a column for each job."""
    figures = [_figures(produced, result) for result in results.values()]
    rows = [[name, *(f"{column[name]:,}" for column in figures)] for name in figures[0]]
    if not any(result.findings.has_letters for result in results.values()):
        rows = [row for row in rows if row[0] not in _OF_LETTERS]
    return ["", *(NAMES[job] for job in results)], rows


def _figures(produced: int, result: Result) -> dict[str, int]:
    return {
        "produced": produced,
        "stored": result.findings.stored,
        "dead letters": result.findings.letters,
        "missing": result.findings.missing,
        "duplicated": result.findings.duplicated,
        "wrong letters": result.findings.wrong_letters,
        "wrong sums": result.findings.wrong_aggregates,
        "killed in mid-batch": result.kills_in_batch,
        "seconds": round(result.run.seconds),
    }


_MUST_BE_ZERO: Final = frozenset({"missing", "duplicated", "wrong letters", "wrong sums"})
_OF_LETTERS: Final = frozenset({"dead letters", "wrong letters"})


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
    kills = [kill for result in results.values() for kill in result.run.kills]
    return _PAGE.substitute(
        title=f"{produced:,} flights, {len(kills)} kills",
        paragraph=escape(_paragraph(produced, results)),
        charts="".join(_chart_section(result, produced, scale) for result in results.values()),
        findings=_findings(produced, results),
        kills=_kills(kills),
        footer=escape(f"Seed {seed}. Both jobs share the axes; the dashed line is what was produced."),
    )


def _paragraph(produced: int, results: Results) -> str:
    kills = (
        f"Each job reads the same {produced:,} records from Kafka, gets SIGKILL in the middle of the batches that are "
        "marked, and is started again each time; the flat stretches are Spark's start."
    )
    parts = [kills]
    if ours := results.get("offsetstore"):
        parts.append(_OURS)
        if not ours.looks_apart:
            looks = len(ours.run.looks)
            rows = "rows and letters" if ours.findings.has_letters else "rows"
            parts.append(f"Another connection looked {looks} times while it ran: as many {rows} as offsets each time.")
        if ours.findings.has_letters:
            kinds = "; ".join(kind.words for kind in KINDS)
            parts.append(_LETTERS.format(letters=ours.findings.letters, count=len(KINDS), kinds=kinds))
    if "at_least_once" in results:
        parts.append(_THEIRS)
    return " ".join(parts)


def _chart_section(result: Result, produced: int, scale: Scale) -> str:
    job = result.run.job
    return (
        f'<section class="{job}"><div class="head"><i></i><h2>{NAMES[job]}</h2><span>{_SUBTITLES[job]}</span></div>'
        f"{chart(job, result.run.looks, result.run.kills, produced, scale)}</section>"
    )


def _findings(produced: int, results: Results) -> str:
    columns, rows = summary(produced, results)
    head = "".join(f'<th class="number">{column}</th>' for column in columns[1:])
    body = "".join(
        f"<tr><th>{name}</th>{''.join(_figure(name, value) for value in values)}</tr>" for name, *values in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def _figure(name: str, value: str) -> str:
    judged = ("good" if value == "0" else "bad") if name in _MUST_BE_ZERO else ""
    return f'<td class="number {judged}">{value}</td>'


def _kills(kills: Sequence[Killed]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("", "job", "where", "killed", "batch", "records", "after", "exit"))
    rows = "".join(_kill_row(kill) for kill in kills)
    return f'<table class="kills"><tr>{head}</tr>{rows}</table>'


def _kill_row(kill: Killed) -> str:
    ranges = ", ".join(f"{name} [{first:,}, {until:,})" for name, (first, until) in kill.range.items())
    records = sum(until - first for first, until in kill.range.values())
    cells = (
        str(kill.number),
        NAMES[kill.job],
        WORDS[kill.point] + ("" if kill.in_batch else " (between two batches: tried again)"),
        kill.target,
        str(kill.batch),
        f"{records:,}",
        f"{kill.at:.1f} s",
        str(kill.exit_status),
    )
    title = escape(f"pid {kill.pid}; {ranges}")
    return f'<tr title="{title}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


# The chart: flights landed over time, as inline SVG, with the kills marked. Its colours are the page's.
_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 40, 34
_TICKS: Final = 5
_STEPS: Final = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts seconds and flights to the picture's points; both jobs share it, to be compared."""

    seconds: float
    flights: int

    def x(self, at: float) -> float:
        """From the left."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / self.seconds

    def y(self, landed: int) -> float:
        """From the top."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * landed / self.flights


def ticks(largest: float) -> list[float]:
    """Return about five round numbers from 0 to at most ``largest``."""
    magnitude = 10.0 ** (len(str(int(largest / _TICKS))) - 1)
    step = next(step * magnitude for step in _STEPS if step * magnitude * _TICKS >= largest)
    return [number * step for number in range(int(largest / step) + 1)]


def chart(name: str, looks: Sequence[Look], kills: Sequence[Killed], produced: int, scale: Scale) -> str:
    """Draw one job.

    :param name: the class of its colour, and what a screen reader calls it.
    """
    last = looks[-1]
    parts = [
        _axes(scale),
        f'<path class="area" d="{_path(looks, scale)} V{scale.y(0):.1f} H{scale.x(looks[0].at):.1f} Z"/>',
        _across("produced", scale.y(produced)),
        f'<path class="line" d="{_path(looks, scale)}"/>',
        *(_kill(kill, scale) for kill in kills),
        f'<circle class="end" cx="{scale.x(last.at):.1f}" cy="{scale.y(last.passed):.1f}" r="4"/>',
        _labels(last, produced, scale),
    ]
    letters = f" and {last.letters:,} dead letters" if last.letters else ""
    title = f"{name}: flights landed over time; {last.landed:,}{letters} at the end, {produced:,} were produced"
    return (
        f'<svg class="{name}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _path(looks: Sequence[Look], scale: Scale) -> str:
    """Go up in steps: flights land when a transaction commits, not on the way there."""
    steps = "".join(f" H{scale.x(look.at):.1f} V{scale.y(look.passed):.1f}" for look in looks[1:])
    return f"M{scale.x(looks[0].at):.1f} {scale.y(looks[0].passed):.1f}{steps}"


def _axes(scale: Scale) -> str:
    base = scale.y(0)
    rows = "".join(
        _across("grid", scale.y(int(value)))
        + f'<text class="tick" x="{_LEFT - 8}" y="{scale.y(int(value)) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        for value in ticks(scale.flights)
    )
    seconds = "".join(
        f'<text class="tick" x="{scale.x(value):.1f}" y="{base + 18:.1f}" text-anchor="middle">{value:g} s</text>'
        for value in ticks(scale.seconds)
    )
    return rows + _across("axis", base) + seconds


def _across(name: str, y: float) -> str:
    return f'<line class="{name}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _kill(kill: Killed, scale: Scale) -> str:
    x = scale.x(kill.at)
    words = f"{kill.number}: SIGKILL {WORDS[kill.point]}, {kill.target}, in batch {kill.batch}, after {kill.at:.1f} s"
    return (
        f'<g class="kill"><title>{escape(words)}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{scale.y(0):.1f}"/>'
        f'<circle cx="{x:.1f}" cy="{_TOP - 20}" r="10"/>'
        f'<text x="{x:.1f}" y="{_TOP - 16}" text-anchor="middle">{kill.number}</text>'
        f'<rect x="{x - 12:.1f}" y="0" width="24" height="{_HEIGHT - _BOTTOM}"/></g>'
    )


def _labels(last: Look, produced: int, scale: Scale) -> str:
    """Label the end of the line, and the dashed line."""
    surplus = last.passed - produced
    words = f"+ {last.letters:,} dead letters" if last.letters else "as produced"
    if surplus:
        words = f"{abs(surplus):,} too {'many' if surplus > 0 else 'few'}"
    x, y = scale.x(last.at) + 12, scale.y(last.passed) + 4
    return (
        f'<text class="tick over" x="{_LEFT + 8}" y="{scale.y(produced) - 8:.1f}">{produced:,} produced</text>'
        f'<text class="label" x="{x:.1f}" y="{y:.1f}">{last.landed:,}'
        f'<tspan class="tick" x="{x:.1f}" dy="17">{words}</tspan></text>'
    )


# It loads no other files, and has light and dark colours.
_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #fcfcfb; --ink: #0b0b0b; --ink-2: #52514e; --ink-3: #7a7974;
  --grid: #e6e5df; --axis: #bcbbb3; --rim: rgba(11, 11, 11, .10);
  --ours: #2a78d6; --theirs: #eb6834; --good: #0a7d0a; --bad: #c52f2f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f0f0e; --card: #1a1a19; --ink: #fff; --ink-2: #c3c2b7; --ink-3: #94938b;
    --grid: #2b2b29; --axis: #4a4a46; --rim: rgba(255, 255, 255, .10);
    --ours: #3987e5; --theirs: #e2703e; --good: #3fbf3f; --bad: #f06a6a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 0; }
p { color: var(--ink-2); max-width: 100ch; margin: 0 0 24px; }
section { background: var(--card); border: 1px solid var(--rim); border-radius: 12px; }
section { padding: 20px 24px; margin: 0 0 16px; }
.head { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; margin-bottom: 4px; }
.head span { color: var(--ink-2); }
.head i { width: 12px; height: 12px; border-radius: 3px; background: var(--series); align-self: center; }
.offsetstore { --series: var(--ours); }
.at_least_once { --series: var(--theirs); }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, sans-serif; }
svg .line { fill: none; stroke: var(--series); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--series); opacity: .10; }
svg .end { fill: var(--series); stroke: var(--card); stroke-width: 2; }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--axis); }
svg .produced { stroke: var(--ink-2); stroke-dasharray: 2 4; }
svg .tick { fill: var(--ink-3); font-size: 12px; font-weight: 400; font-variant-numeric: tabular-nums; }
svg .label, svg .over { paint-order: stroke; stroke: var(--card); stroke-width: 6px; stroke-linejoin: round; }
svg .label { fill: var(--ink); font-size: 15px; font-weight: 600; font-variant-numeric: tabular-nums; }
svg .kill line { stroke: var(--ink-2); stroke-dasharray: 4 3; }
svg .kill circle { fill: var(--ink); }
svg .kill text { fill: var(--card); font-size: 12px; font-weight: 600; }
svg .kill rect { fill: transparent; }
svg .kill:hover line { stroke: var(--ink); stroke-width: 2; stroke-dasharray: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--grid); }
th { color: var(--ink-2); font-weight: 500; }
.kills td, .kills th { white-space: nowrap; padding-right: 20px; }
tr:last-child td, tr:last-child th { border-bottom: 0; }
.number { text-align: right; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
small { color: var(--ink-3); }
</style>
</head>
<body><main>
<h1>$title</h1>
<p>$paragraph</p>
$charts
<section><div class="head"><h2>Compared with the CSV</h2></div><div class="scroll">$findings</div></section>
<section><div class="head"><h2>The kills</h2></div><div class="scroll">$kills</div></section>
<small>$footer</small>
</main></body>
</html>
""")
