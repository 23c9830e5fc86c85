"""The walks that docs/architecture.md draws are those of the code: a claim, batches, letters and a command, watched."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from click.testing import CliRunner

from offsetstore import Append, DeadLetters, OffsetStore
from offsetstore.cli.commands import cli
from offsetstore.processing.runner import RunnerSettings
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.support.memory_source import GOOD, LOG, MemorySource

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"^(?P<indent>[ │├└─]*)(?P<path>[a-z][\w/]*\.py) +(?P<names>.*?)(?:  .*)?$")


@dataclass(frozen=True)
class Step:
    """A line of a drawing: functions or classes of a file."""

    path: str
    names: tuple[str, ...]

    def is_of(self, code: CodeType) -> bool:
        return not {*code.co_qualname.split(".")}.isdisjoint(self.names)

    def __str__(self) -> str:
        return f"{self.path} {', '.join(self.names)}"


def drawn() -> list[tuple[Step, Step]]:
    """Each line with the one that it hangs from."""
    found: list[tuple[Step, Step]] = []
    for drawing in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1::2]:
        above: list[tuple[int, Step]] = []
        for line in map(LINE.match, drawing.splitlines()):
            if line is None:
                continue
            depth, step = len(line["indent"]), Step(line["path"], tuple(line["names"].split(", ")))
            above = [one for one in above if one[0] < depth]
            if above:
                found.append((above[-1][1], step))
            above.append((depth, step))
    return found


@dataclass
class Watch:
    """The steps that were made, and which of them within which."""

    steps: set[Step]
    seen: set[Step] = field(default_factory=set[Step])
    within: set[tuple[Step, Step]] = field(default_factory=set[tuple[Step, Step]])
    _known: dict[CodeType, list[Step]] = field(default_factory=dict[CodeType, list[Step]])

    def of(self, code: CodeType) -> list[Step]:
        if code not in self._known:
            path = code.co_filename.removeprefix(f"{ROOT / 'offsetstore'}/")
            self._known[code] = [step for step in self.steps if step.path == path and step.is_of(code)]
        return self._known[code]

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (made := self.of(frame.f_code)):
            return
        self.seen.update(made)
        outer: FrameType | None = frame
        while (outer := outer.f_back) is not None:
            self.within.update((around, step) for around in self.of(outer.f_code) for step in made)


@contextmanager
def watching(steps: set[Step]) -> Generator[Watch]:
    watch, before = Watch(steps), sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield watch
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def test_each_line_of_the_drawings_is_called_by_the_one_that_it_hangs_from(
    offsetstore_database: str, query: Query
) -> None:
    edges = drawn()
    query("CREATE TABLE results (record bigint CONSTRAINT unlucky CHECK (record <> 13))")
    broker = StaticBroker.with_topics({"payments": 2}, end=8)

    with watching({step for edge in edges for step in edge}) as watch:
        with OffsetStore.connect(offsetstore_database) as store:
            claim = store.claim("billing", broker, topics=["payments"], mirror_every=None)
            MemorySource(
                claim, Append("results"), RunnerSettings(dead_letters=DeadLetters(max_retries=1)), LOG
            ).drain_log()
            claim.close()
        environment = {"OFFSETSTORE_URL": offsetstore_database}
        command = ["pause", "-g", "billing", "--reason", "a test", "--format", "json"]
        assert CliRunner(env=environment).invoke(cli, command).exit_code == 0

    assert [number for (number,) in query("SELECT record FROM results ORDER BY record")] == GOOD
    both = [edge for edge in edges if watch.seen.issuperset(edge)]
    assert len(both) > 40
    wrong = [f"{step} does not hang from {around}" for around, step in both if (around, step) not in watch.within]
    assert wrong == []


def test_a_line_that_hangs_from_another_function_is_found() -> None:
    inner, outer, other = (Step("a.py", (name,)) for name in ("inner", "outer", "other"))
    found: dict[str, Any] = {}
    code = "def inner(): pass\ndef outer(): inner()\ndef other(): pass\n"
    exec(compile(code, str(ROOT / "offsetstore" / "a.py"), "exec"), found)  # noqa: S102
    with watching({inner, outer, other}) as watch:
        found["outer"]()
        found["other"]()
    assert watch.seen == {inner, outer, other}
    assert watch.within == {(outer, inner)}
