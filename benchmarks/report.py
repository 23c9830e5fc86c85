"""The results as tables and a plot; ``python -m benchmarks.report`` puts both into docs/performance.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

BUILD: Final = Path("build/bench")
_DOCS: Final = Path("docs")
_BEGIN, _END = "<!-- figures: written by python -m benchmarks.report -->\n", "<!-- end of the figures -->\n"

TITLES: Final = {
    "small": "{records:,} small records in one batch",
    "wide": "{records:,} wide records in one batch",
    "flights": "{records:,} flights in one batch",
    "latest": "{records:,} small records in one batch, to the end of the topic",
    "steady-5000": "Small records, {per_trigger:,} a trigger",
    "steady-500": "Small records, {per_trigger:,} a trigger",
}
_JOBS: Final = {
    "noop": "noop: Spark writes nothing",
    "batch": "offsetstore, batch",
    "partition": "offsetstore, partition",
    "jdbc": "Spark's JDBC writer, at least once",
    "copy": "COPY of bytes that are encoded already",
    "append": "offsetstore's `Append`, of Arrow batches",
    "merge by hand": "COPY of such bytes, and INSERT … ON CONFLICT",
    "upsert": "offsetstore's `Upsert`, of Arrow batches",
}
_SETTINGS: Final = {
    "defaults": "Spark's",
    "wait": "`fetch.max.wait.ms`",
    "poll": "and `max.poll.records`",
    "fetch": "and fetch sizes",
    "tuned": "recommended: and the file manager",
    "jar": "recommended, with the jar",
    "5 ms": "recommended, 5 ms a round trip",
    "memory": "",
}
_FLOORS: Final = {"append": "copy", "upsert": "merge by hand"}

Key = tuple[str, str, str]
"""Shape, job and settings."""

Seconds = dict[Key, list[float]]


def grouped(samples: Iterable[Mapping[str, Any]]) -> Seconds:
    """Collect the samples' seconds, jobs and settings in the order above."""
    found: Seconds = {}
    for one in samples:
        found.setdefault((one["shape"], one["job"], one["settings"]), []).append(one["seconds"])
    jobs, settings = list(_JOBS), list(_SETTINGS)
    return {key: found[key] for key in sorted(found, key=lambda key: (jobs.index(key[1]), settings.index(key[2])))}


def render(results: Mapping[str, Any]) -> str:
    """Write what was measured on, and all tables."""
    seconds = grouped(results["samples"])
    parts = [_surroundings(results)]
    for name, title in TITLES.items():
        keys = [key for key in seconds if key[0] == name]
        if queries := [key for key in keys if key[2] != "memory"]:
            parts.append(f"### {title.format(**results['shapes'][name])}\n")
            parts.append(_queries(seconds, queries, results["shapes"][name]))
        if memory := [key for key in keys if key[2] == "memory"]:
            parts.append(f"### {title.format(**results['shapes'][name])}: from memory, without Spark\n")
            parts.append(_from_memory(seconds, memory, results["shapes"][name]["records"]))
    if {one["shape"] for one in results["peaks"]} == {"tenth", "large"}:
        parts.append(_ten_times(seconds, results))
    return "\n".join(parts)


def _queries(seconds: Seconds, keys: list[Key], shape: Mapping[str, Any]) -> str:
    """Seconds of a batch, or milliseconds of a trigger."""
    is_steady = shape["per_trigger"] is not None
    rows: list[list[str]] = []
    for key in keys:
        name, job, settings = key
        same = name, "noop", "tuned" if settings == "5 ms" else settings
        middle = median(seconds[key])
        last = f"{shape['records'] / middle:,.0f}"
        if is_steady:
            last = f"{(middle - median(seconds[same])) * 1000:.0f}" if same in seconds else "-"
        ratios = [_ratio(seconds, key, (name, "noop", "defaults")), _ratio(seconds, key, same)]
        rows.append([_JOBS[job], _SETTINGS[settings], *_spread(seconds[key], ms=is_steady), *ratios, last])
    heads = ["", "settings", "ms, p50" if is_steady else "seconds", "spread", "÷ noop, Spark's settings"]
    return table([*heads, "÷ noop, the same", "ms more than that" if is_steady else "records/s"], rows, texts=2)


def _from_memory(seconds: Seconds, keys: list[Key], records: int) -> str:
    rows: list[list[str]] = []
    for key in keys:
        name, job, settings = key
        ratio = _ratio(seconds, key, (name, _FLOORS.get(job, job), settings))
        rows.append([_JOBS[job], *_spread(seconds[key]), ratio, f"{records / median(seconds[key]):,.0f}"])
    return table(["", "seconds", "spread", "÷ by hand", "records/s"], rows, texts=1)


def _ten_times(seconds: Seconds, results: Mapping[str, Any]) -> str:
    """Compare the two sizes of a batch, in time and in memory."""
    sizes = ("tenth", "large")
    peaks = {(one["shape"], one["job"]): one for one in results["peaks"]}
    rows: list[list[str]] = []
    for job in _JOBS:
        if any((size, job) not in peaks for size in sizes):
            continue
        times = ["-"] * 4
        one, ten = ((size, job, "tuned") for size in sizes)
        if one in seconds and ten in seconds:
            times = [f"{median(seconds[key]):.2f}" for key in (one, ten)]
            times += [_ratio(seconds, ten, one), _ratio(seconds, ten, ("large", "noop", "tuned"))]
        memory = [
            " → ".join(f"{peaks[size, job][name]:.0f}" for size in sizes) for name in ("driver", "worker", "heap")
        ]
        rows.append([_JOBS[job], *times, *memory])
    small, large = (f"{results['shapes'][size]['records']:,}" for size in sizes)
    heads = ["", f"{small}: seconds", f"{large}: seconds", "÷", "÷ noop", "driver, MB", "worker, MB", "JVM's heap, MB"]
    title = f"### {large} records in one batch beside {small}, with the recommended settings\n"
    return f"{title}\n{table(heads, rows, texts=1)}"


def _spread(values: list[float], *, ms: bool = False) -> list[str]:
    """Write the median, the least and the most."""
    factor, digits = (1000, 0) if ms else (1, 2)
    middle, least, most = (f"{value * factor:.{digits}f}" for value in (median(values), min(values), max(values)))
    return [middle, f"{least} to {most}"]


def _ratio(seconds: Seconds, key: Key, floor: Key) -> str:
    """Divide the medians, if the floor was measured."""
    return f"{median(seconds[key]) / median(seconds[floor]):.2f}" if floor in seconds else "-"


def table(heads: list[str], rows: list[list[str]], *, texts: int) -> str:
    """Write a Markdown table; all but the first columns are numbers."""
    lines = [heads, ["---"] * texts + ["---:"] * (len(heads) - texts), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _surroundings(results: Mapping[str, Any]) -> str:
    machine, spark, jdbc = results["machine"], results["spark"], results["jdbc"]
    postgres = ", ".join(f"`{name}` {value}" for name, value in results["postgresql"].items())
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    return (
        f"Measured on {results['begun'][:10]} at commit {results['commit']}: medians of {results['rounds']} rounds, on "
        f"{machine['cores']} cores and {machine['memory_gb']} GB with a load of {machine['load']:.1f} before, Spark "
        f"{spark['spark.master']} with {spark['spark.driver.memory']}.\n\n"
        f"- Versions: {versions}.\n- PostgreSQL: {postgres}.\n"
        f"- The JDBC writer: {', '.join(f'`{name}` {value}' for name, value in jdbc.items())}.\n"
    )


# -- the plot

COLOURS: Final = {"defaults": "#9aa5b1", "tuned": "#2f6f9f"}
_ROW, _BAR, _LEFT, _WIDTH = 18, 13, 250, 820


class Bar(NamedTuple):
    """One bar of a plot."""

    label: str
    colour: str
    value: float


def plot(results: Mapping[str, Any]) -> str:
    """Draw each job's median as a multiple of noop's with Spark's settings."""
    seconds = grouped(results["samples"])
    bars = {name: list(_bars(seconds, name)) for name in TITLES if name != "latest"}
    groups = {TITLES[name].format(**results["shapes"][name]): found for name, found in bars.items() if found}
    return draw("time ÷ noop with Spark's settings: grey with Spark's settings, blue with the recommended", groups)


def draw(title: str, groups: Mapping[str, list[Bar]]) -> str:
    """Draw bars, by groups that have titles of their own."""
    longest = max((bar.value for found in groups.values() for bar in found), default=1)
    y = _ROW
    out = [_text(_LEFT, y, title)]
    for name, found in groups.items():
        y += 2 * _ROW
        out.append(_text(10, y, name, weight="bold"))
        for label, colour, value in found:
            y += _ROW
            width = value / longest * (_WIDTH - _LEFT - 60)
            place = f'x="{_LEFT}" y="{y - _BAR + 3}" width="{width:.0f}" height="{_BAR}"'
            out.append(f'<rect {place} fill="{colour}"/>')
            out.append(_text(_LEFT - 8, y, label, anchor="end"))
            out.append(_text(_LEFT + width + 5, y, f"{value:.2f}"))
    size = f'width="{_WIDTH}" height="{y + _ROW}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *out, "</svg>\n"])


def _bars(seconds: Seconds, shape: str) -> Iterator[Bar]:
    floor = seconds.get((shape, "noop", "defaults"))
    for (name, job, settings), values in seconds.items():
        if floor is not None and name == shape and settings in COLOURS:
            label = _JOBS[job].partition(":")[0].replace("`", "")
            yield Bar(label, COLOURS[settings], median(values) / median(floor))


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def write(results: Mapping[str, Any]) -> None:
    """Write the results, the tables and the plot into build/bench."""
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (BUILD / "table.md").write_text(render(results), encoding="utf-8")
    (BUILD / "plot.svg").write_text(plot(results), encoding="utf-8")


def with_figures(page: str, figures: str, mark: str = _BEGIN) -> str:
    """Put the figures between their marks in the page."""
    before, begin, rest = page.partition(mark)
    _, end, after = rest.partition(_END)
    assert begin and end, "the page has no place for figures"  # noqa: PT018 - both, in this order
    return f"{before}{begin}\n{figures}\n{end}{after}"


def main() -> None:
    """Put the last results into docs/."""
    results = json.loads((BUILD / "results.json").read_text(encoding="utf-8"))
    page = _DOCS / "performance.md"
    figures = f"![Time of each job, as a multiple of noop's](performance.svg)\n\n{render(results)}"
    page.write_text(with_figures(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    (_DOCS / "performance.svg").write_text(plot(results), encoding="utf-8")


if __name__ == "__main__":
    main()
