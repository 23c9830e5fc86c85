"""The picture: flights landed over time, as inline SVG, with the kills marked. Colours are the page's (`page.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from offsetstore.demo.kills import WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetstore.demo.kills import Killed
    from offsetstore.demo.watch import Look

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
        f'<circle class="end" cx="{scale.x(last.at):.1f}" cy="{scale.y(last.landed):.1f}" r="4"/>',
        _labels(last, produced, scale),
    ]
    title = f"{name}: flights landed over time; {last.landed:,} at the end, {produced:,} were produced"
    return (
        f'<svg class="{name}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _path(looks: Sequence[Look], scale: Scale) -> str:
    """Go up in steps: flights land when a transaction commits, not on the way there."""
    steps = "".join(f" H{scale.x(look.at):.1f} V{scale.y(look.landed):.1f}" for look in looks[1:])
    return f"M{scale.x(looks[0].at):.1f} {scale.y(looks[0].landed):.1f}{steps}"


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
    surplus = last.landed - produced
    words = f"{abs(surplus):,} too {'many' if surplus > 0 else 'few'}" if surplus else "as produced"
    x, y = scale.x(last.at) + 12, scale.y(last.landed) + 4
    return (
        f'<text class="tick over" x="{_LEFT + 8}" y="{scale.y(produced) - 8:.1f}">{produced:,} produced</text>'
        f'<text class="label" x="{x:.1f}" y="{y:.1f}">{last.landed:,}'
        f'<tspan class="tick" x="{x:.1f}" dy="17">{words}</tspan></text>'
    )
