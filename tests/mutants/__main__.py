"""``python -m tests.mutants [NAME...]``: is each mutant caught? Without names all, and those of the mutation tool.

``mutmut`` as a name stands for the mutation tool. The table is printed and kept in ``build/mutants/report.txt``. The
exit code is 1 if any mutant gets away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.mutation import MutationRun, mutate
from tests.mutants.running import Verdict, judge, run_unmutated
from tests.mutants.trees import BUILD

_TOOL: Final = "mutmut"
_WIDTH: Final = max(len(mutant.name) for mutant in MUTANTS)


class Report:
    """Prints as it goes, and keeps what it has printed."""

    def __init__(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._file = (BUILD / "report.txt").open("w", encoding="utf-8")

    def say(self, line: str) -> None:
        """Write one line, now."""
        for stream in (sys.stdout, self._file):
            stream.write(f"{line}\n")
            stream.flush()


def main(names: Sequence[str]) -> int:
    """Judge the mutants of these names; return the exit code."""
    unknown = sorted(set(names) - {_TOOL, *(mutant.name for mutant in MUTANTS)})
    if unknown:
        sys.stderr.write(f"no such mutant: {', '.join(unknown)}\n")
        return 2
    report = Report()
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    got_away = _judge_all(report, chosen) if chosen else 0
    if not names or _TOOL in names:
        got_away += _mutate(report)
    return 1 if got_away else 0


def _judge_all(report: Report, mutants: Sequence[Mutant]) -> int:
    verdicts: list[Verdict] = []
    # Several at once, but where there is a Spark: that takes the whole machine.
    quick = [mutant for mutant in mutants if not mutant.needs_spark]
    slow = [mutant for mutant in mutants if mutant.needs_spark]
    for group, workers in ((quick, os.cpu_count() or 1), (slow, 1)):
        if not group:
            continue
        run = run_unmutated(group)
        if run.code != 0:
            report.say(f"Without any mutant the tests fail already, so that nothing can be told; see {run.log}")
            return 1
        report.say(f"\nThe tests of the next {len(group)} pass where nothing is mutated ({run.seconds:.0f} s).")
        report.say(f"{'mutant':<{_WIDTH}}  {'s':>5}  caught by")
        with ThreadPoolExecutor(workers) as pool:
            verdicts += [_told(report, verdict) for verdict in pool.map(judge, group)]
    got_away = sum(not verdict.is_caught for verdict in verdicts)
    report.say(f"\n{len(verdicts) - got_away} of {len(verdicts)} named mutants were caught.")
    return got_away


def _told(report: Report, verdict: Verdict) -> Verdict:
    mark = "" if verdict.is_caught else "GOT AWAY: "
    report.say(f"{verdict.name:<{_WIDTH}}  {verdict.seconds:>5.1f}  {mark}{verdict.test} ({verdict.error})")
    return verdict


def _mutate(report: Report) -> int:
    run: MutationRun = mutate()
    report.say(f"\n{run.summary}")
    for line in run.problems:
        report.say(line)
    return len(run.problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
