"""Write the table of docs/comparison.md, between its two marks."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.peers.programs import PEERS

PAGE: Final = Path("docs/comparison.md")
_MARKED: Final = re.compile(r"(?<=<!-- measured -->\n).*(?=<!-- end of measured -->)", re.DOTALL)
_HEAD: Final = (
    "Way",
    "Guarantee it claims",
    "Records/s: median (slowest to fastest)",
    "Ratio",
    "Doubled, killed at random",
    "Doubled, killed as rows become visible",
    "Lost, in all kills",
    "Versions",
)


def write_page(results: dict[str, Any]) -> Path:
    """Write the table; return the page's path."""
    before = PAGE.read_text(encoding="utf-8")
    after, marks = _MARKED.subn(lambda _: _table(results), before)
    assert marks == 1, f"{PAGE} has lost its marks"
    PAGE.write_text(after, encoding="utf-8")
    return PAGE


def _table(results: dict[str, Any]) -> str:
    machine, peers = results["machine"], results["peers"]
    ours = median(peers["offsetstore"]["seconds"])
    rows = [_HEAD, ["---"] * len(_HEAD), *(_row(name, peer, results["records"], ours) for name, peer in peers.items())]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    where = (
        f"{results['records']:,} records; {machine['cores']} cores, Java {machine['java']}, Kafka "
        f"{results['kafka']['version']}, PostgreSQL {results['postgresql']['version']}; {results['at'][:10]}."
    )
    left = {peer["name"]: sum(kill["prepared"] for kill in peer["kills"]) for peer in peers.values()}
    notes = [f"\nTransactions left prepared after all kills: {name}, {count}." for name, count in left.items() if count]
    return "\n".join([where, "", *lines, *notes, ""])


def _row(name: str, peer: dict[str, Any], records: int, ours: float) -> list[str]:
    seconds: list[float] = peer["seconds"]
    middle, kills = median(seconds), peer["kills"]
    random = [kill for kill in kills if kill["moment"] is not None]
    visible = [kill for kill in kills if kill["moment"] is None]
    doubled = ["can't show: rows have a key"] * 2 if PEERS[name].unique else [_rows(random), _rows(visible)]
    return [
        peer["name"],
        peer["guarantee"],
        f"{records / middle:,.0f} ({records / max(seconds):,.0f} to {records / min(seconds):,.0f})",
        f"{ours / middle:.2f}",
        *doubled,
        _rows(kills, "lost"),
        peer["versions"],
    ]


def _rows(kills: list[dict[str, Any]], what: str = "doubled") -> str:
    """As in "2 of 3 (1,200; 40 rows)"."""
    found = [kill[what] for kill in kills if kill[what]]
    stuck = sum(not kill["finished"] for kill in kills)
    rows = f" ({'; '.join(f'{one:,}' for one in found)} rows)" if found else ""
    return f"{len(found)} of {len(kills)}{rows}" + (f", {stuck} did not finish" if stuck else "")
