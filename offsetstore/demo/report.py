"""What the demo leaves: a table in the terminal, ``report.json``, and ``report.html``."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from offsetstore.demo.chart import Scale, chart
from offsetstore.demo.kills import WORDS
from offsetstore.demo.page import PAGE
from offsetstore.demo.results import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offsetstore.demo.kills import Killed
    from offsetstore.demo.results import Result, Results

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
_HEADROOM: Final = 1.04


def summary(produced: int, results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table at the end: what it counts, and a column for each job."""
    figures = [_figures(produced, result) for result in results.values()]
    rows = [[name, *(f"{column[name]:,}" for column in figures)] for name in figures[0]]
    return ["", *(NAMES[job] for job in results)], rows


def _figures(produced: int, result: Result) -> dict[str, int]:
    return {
        "produced": produced,
        "stored": result.findings.stored,
        "missing": result.findings.missing,
        "duplicated": result.findings.duplicated,
        "wrong sums": result.findings.wrong_aggregates,
        "killed in mid-batch": result.kills_in_batch,
        "seconds": round(result.run.seconds),
    }


_MUST_BE_ZERO: Final = frozenset({"missing", "duplicated", "wrong sums"})


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
    scale = Scale(max(look.at for look in looks), round(_HEADROOM * max(produced, *(look.landed for look in looks))))
    kills = [kill for result in results.values() for kill in result.run.kills]
    return PAGE.substitute(
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
            parts.append(f"Another connection looked {looks} times while it ran: as many rows as offsets each time.")
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
