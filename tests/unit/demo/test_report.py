"""What the demo's report says, and what it takes as a proof."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from offsetstore.demo.kills import JOBS, DemoJob, JobName, JobResult, Killed
from offsetstore.demo.report import summary, ticks, write_report
from offsetstore.demo.run import is_proven
from offsetstore.demo.tables import Findings, Observation

FLIGHTS = 24_000
OURS, THEIRS = JOBS
Results: TypeAlias = dict[JobName, JobResult]


def kill(job: DemoJob, number: int) -> Killed:
    return Killed(
        number=number,
        job=job.name,
        point=job.points[number - 1],
        target="process group",
        run=number,
        batch=number + 2,
        range={"flights-0": (number * 1000, number * 1000 + 1000)},
        at=number * 10.0,
        landed=number * 4000,
        pid=4711,
        exit_status=-9,
        in_batch=True,
        jvm_ended_by_demo=False,
    )


def result(job: DemoJob, *, surplus: int = 0) -> JobResult:
    looks = [Observation(second, second * 500, second * 500) for second in range(48)]
    looks.append(Observation(48, FLIGHTS + surplus, FLIGHTS + surplus))
    kills = [kill(job, number) for number in (1, 2, 3, 4)]
    findings = Findings(FLIGHTS + surplus, 0, surplus, 0)
    return JobResult(seconds=48.0, runs=5, batches=28, kills=kills, looks=looks, findings=findings)


def plain() -> Results:
    return {"offsetstore": result(OURS), "at_least_once": result(THEIRS, surplus=3000)}


def with_letters() -> Results:
    ours = result(OURS)
    ours.looks[-1] = Observation(48, FLIGHTS - 500, FLIGHTS, 500)
    return {"offsetstore": replace(ours, findings=Findings(FLIGHTS - 500, 0, 0, 0, letters=500))}


def test_the_figures_of_both_jobs_and_each_kill_are_in_the_json_the_page_and_the_table(tmp_path: Path) -> None:
    page = write_report(tmp_path, FLIGHTS, plain(), seed=1).read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["produced"] == FLIGHTS
    names = ("stored", "missing", "duplicated", "wrong_aggregates")
    assert [report["offsetstore"][name] for name in names] == [FLIGHTS, 0, 0, 0]
    assert [report["at_least_once"][name] for name in names] == [FLIGHTS + 3000, 0, 3000, 0]
    assert report["offsetstore"]["seconds"] == 48.0
    assert [(found["job"], found["point"]) for found in report["kills"]] == [
        (job.name, point) for job in JOBS for point in job.points
    ]
    assert (report["kills"][0]["batch"], report["kills"][0]["range"]) == (3, {"flights-0": [1000, 2000]})

    assert (len(re.findall("<svg ", page)), len(re.findall('<g class="kill">', page))) == (2, 8)
    assert "3,000 too many" in page
    assert "as produced" in page
    assert "dead letter" not in page
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page), "it needs no other file"
    columns, rows = summary(FLIGHTS, plain())
    assert columns == ["", "offsetstore", "at-least-once"]
    assert ["duplicated", "0", "3,000"] in rows
    assert not [row for row in rows if "letters" in row[0]]


def test_letters_are_counted_beside_the_flights_and_are_not_missing(tmp_path: Path) -> None:
    page = write_report(tmp_path, FLIGHTS, with_letters(), seed=1).read_text()
    assert "at_least_once" not in json.loads((tmp_path / "report.json").read_text())
    assert "+ 500 dead letters" in page
    assert "too few" not in page
    _, rows = summary(FLIGHTS, with_letters())
    assert [row for row in rows if "letters" in row[0]] == [["dead letters", "500"], ["wrong letters", "0"]]


def found(**wrong: int) -> Callable[[JobResult], JobResult]:
    return lambda ours: replace(ours, findings=replace(ours.findings, **wrong))


def killed(**wrong: Any) -> Callable[[JobResult], JobResult]:
    """Of the first kill; without any words, there was none."""

    def change(ours: JobResult) -> JobResult:
        first, *others = ours.kills
        return replace(ours, kills=[replace(first, **wrong), *others] if wrong else others)

    return change


def with_too_few_batches(ours: JobResult) -> JobResult:
    return replace(ours, batches=23)


def looked(*more: int) -> Callable[[JobResult], JobResult]:
    return lambda ours: replace(ours, looks=[*ours.looks, Observation(49, *more)])


@pytest.mark.parametrize("make", [plain, with_letters])
def test_what_is_exact_is_a_proof_whatever_the_other_job_has_written_twice(make: Callable[[], Results]) -> None:
    assert is_proven(FLIGHTS, FLIGHTS, make())
    assert not is_proven(FLIGHTS - 1, FLIGHTS, make()), "what Kafka does not have can't be counted"


@pytest.mark.parametrize(
    ("make", "change"),
    [
        *((plain, found(**{name: 1})) for name in ("missing", "duplicated", "wrong_aggregates")),
        *((plain, killed(**evidence)) for evidence in ({}, {"in_batch": False}, {"exit_status": 1})),
        (plain, looked(FLIGHTS, FLIGHTS - 1)),
        *((with_letters, found(**wrong)) for wrong in ({"wrong_letters": 1}, {"letters": 499}, {"letters": 501})),
        (with_letters, looked(FLIGHTS - 500, FLIGHTS, 499)),
        (plain, with_too_few_batches),
    ],
)
def test_one_wrong_figure_of_ours_is_enough_to_fail(
    make: Callable[[], Results], change: Callable[[JobResult], JobResult]
) -> None:
    results = make()
    results["offsetstore"] = change(results["offsetstore"])
    assert not is_proven(FLIGHTS, FLIGHTS, results)


@pytest.mark.parametrize("largest", [3.2, 47, 155, 999, 1000, 350_000])
def test_an_axis_has_a_few_round_numbers(largest: float) -> None:
    found = ticks(largest)
    assert found[0] == 0
    assert largest * 0.6 < found[-1] <= largest
    assert 3 <= len(found) <= 6
