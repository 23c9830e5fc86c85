"""What the demo's report says, and what it takes as a proof."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from offsetstore.demo.day_totals import Events
from offsetstore.demo.kills import POINTS, JobName, Killed
from offsetstore.demo.relaying import POINTS as RELAY_POINTS
from offsetstore.demo.report import equation, summary, ticks, write_report
from offsetstore.demo.run import Result, is_proven
from offsetstore.demo.supervise import JobRun
from offsetstore.demo.tables import Findings, Look

FLIGHTS = 24_000
Results: TypeAlias = dict[JobName, Result]


def kill(job: JobName, number: int) -> Killed:
    return Killed(
        number=number,
        job=job,
        point=POINTS[job][number - 1],
        target="process group",
        run=number,
        batch=number + 2,
        range={"flights-0": (number * 1000, number * 1000 + 1000)},
        at=number * 10.0,
        landed=number * 4000,
        pid=4711,
        exit_status=-9,
        in_batch=True,
        jvm_lingered=0.4,
        jvm_ended_by_demo=False,
    )


def result(job: JobName, *, surplus: int = 0) -> Result:
    looks = [Look(second, second * 500, second * 500) for second in range(48)]
    looks.append(Look(48, FLIGHTS + surplus, FLIGHTS + surplus))
    kills = [kill(job, number) for number in (1, 2, 3, 4)]
    run = JobRun(job, seconds=48.0, runs=5, batches=28, kills=kills, looks=looks)
    return Result(run, Findings(FLIGHTS + surplus, 0, surplus, 0))


def plain() -> Results:
    return {"offsetstore": result("offsetstore"), "at_least_once": result("at_least_once", surplus=3000)}


def with_letters() -> Results:
    ours = result("offsetstore")
    ours.run.looks[-1] = Look(48, FLIGHTS - 500, FLIGHTS, 500)
    return {"offsetstore": replace(ours, findings=Findings(FLIGHTS - 500, 0, 0, 0, letters=500))}


def with_events() -> Results:
    exact = Events(read=900, missing=0, duplicated=0, wrong_totals=0)
    ours = replace(result("offsetstore"), events=exact, relay_kills=[*RELAY_POINTS])
    return {**plain(), "offsetstore": ours}


def test_the_figures_of_both_jobs_and_each_kill_are_in_the_json_the_page_and_the_table(tmp_path: Path) -> None:
    page = write_report(tmp_path, FLIGHTS, plain(), seed=1).read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["produced"] == FLIGHTS
    names = ("stored", "missing", "duplicated", "wrong_aggregates")
    assert [report["offsetstore"][name] for name in names] == [FLIGHTS, 0, 0, 0]
    assert [report["at_least_once"][name] for name in names] == [FLIGHTS + 3000, 0, 3000, 0]
    assert report["offsetstore"]["seconds"] == 48.0
    assert [(found["job"], found["point"]) for found in report["kills"]] == [
        (job, point) for job, points in POINTS.items() for point in points
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


def test_letters_and_events_are_counted_beside_the_flights_and_are_not_missing(tmp_path: Path) -> None:
    page = write_report(tmp_path, FLIGHTS, with_letters(), seed=1).read_text()
    assert "at_least_once" not in json.loads((tmp_path / "report.json").read_text())
    assert equation(FLIGHTS, with_letters()["offsetstore"].findings) == (
        "24,000 flights = 23,500 landed + 500 dead letters, none twice"
    )
    assert "+ 500 dead letters" in page
    assert "too few" not in page
    _, rows = summary(FLIGHTS, with_letters())
    assert [row for row in rows if "letters" in row[0]] == [["dead letters", "500"], ["wrong letters", "0"]]
    _, rows = summary(FLIGHTS, with_events())
    names = ("events in Kafka", "missing events", "duplicated events", "wrong day totals", "relay killed")
    assert rows[-6:-1] == [[name, figure, ""] for name, figure in zip(names, ("900", "0", "0", "0", "4"), strict=True)]
    assert "these 900 events" in write_report(tmp_path, FLIGHTS, with_events(), seed=1).read_text()


def found(**wrong: int) -> Callable[[Result], Result]:
    return lambda ours: replace(ours, findings=replace(ours.findings, **wrong))


def killed(**wrong: Any) -> Callable[[Result], Result]:
    """Of the first kill; without any words, there was none."""

    def change(ours: Result) -> Result:
        first, *others = ours.run.kills
        return replace(ours, run=replace(ours.run, kills=[replace(first, **wrong), *others] if wrong else others))

    return change


def told(**wrong: int) -> Callable[[Result], Result]:
    return lambda ours: replace(ours, events=replace(ours.events, **wrong)) if ours.events else ours


def without_a_kill_of_the_relay(ours: Result) -> Result:
    return replace(ours, relay_kills=[*RELAY_POINTS][1:])


def looked(*more: int) -> Callable[[Result], Result]:
    return lambda ours: replace(ours, run=replace(ours.run, looks=[*ours.run.looks, Look(49, *more)]))


@pytest.mark.parametrize("make", [plain, with_letters, with_events])
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
        *((with_events, told(**{name: 1})) for name in ("missing", "duplicated", "wrong_totals")),
        (with_events, without_a_kill_of_the_relay),
    ],
)
def test_one_wrong_figure_of_ours_is_enough_to_fail(
    make: Callable[[], Results], change: Callable[[Result], Result]
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
