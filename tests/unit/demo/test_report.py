from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from offsetstore.demo.day_totals import Events
from offsetstore.demo.kills import POINTS, JobName, Killed
from offsetstore.demo.relaying import POINTS as RELAY_POINTS
from offsetstore.demo.report import equation, summary, ticks, write_report
from offsetstore.demo.run import Result, is_proven
from offsetstore.demo.supervise import JobRun
from offsetstore.demo.tables import Findings, Look

FLIGHTS = 24_000


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


@pytest.fixture
def results() -> dict[JobName, Result]:
    return {"offsetstore": result("offsetstore"), "at_least_once": result("at_least_once", surplus=3000)}


def test_the_json_has_the_figures_of_both_jobs_and_each_kill(tmp_path: Path, results: dict[JobName, Result]) -> None:
    write_report(tmp_path, FLIGHTS, results, seed=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["produced"] == FLIGHTS
    names = ("stored", "missing", "duplicated", "wrong_aggregates")
    assert [report["offsetstore"][name] for name in names] == [FLIGHTS, 0, 0, 0]
    assert [report["at_least_once"][name] for name in names] == [FLIGHTS + 3000, 0, 3000, 0]
    assert report["offsetstore"]["seconds"] == 48.0
    assert [(found["job"], found["point"]) for found in report["kills"]] == [
        (job, point) for job, points in POINTS.items() for point in points
    ]
    assert report["kills"][0]["batch"] == 3
    assert report["kills"][0]["range"] == {"flights-0": [1000, 2000]}


def test_the_page_shows_a_line_for_each_job_and_marks_each_kill(tmp_path: Path, results: dict[JobName, Result]) -> None:
    page = write_report(tmp_path, FLIGHTS, results, seed=1).read_text()
    assert len(re.findall("<svg ", page)) == 2
    assert len(re.findall('<g class="kill">', page)) == 8
    assert "3,000 too many" in page
    assert "as produced" in page


def test_the_page_needs_no_other_file(tmp_path: Path, results: dict[JobName, Result]) -> None:
    page = write_report(tmp_path, FLIGHTS, results, seed=1).read_text()
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page)


def test_a_single_job_has_a_page_too(tmp_path: Path, results: dict[JobName, Result]) -> None:
    del results["at_least_once"]
    page = write_report(tmp_path, FLIGHTS, results, seed=1).read_text()
    assert len(re.findall("<svg ", page)) == 1
    assert "at_least_once" not in json.loads((tmp_path / "report.json").read_text())


def test_the_table_has_a_column_for_each_job(results: dict[JobName, Result]) -> None:
    columns, rows = summary(FLIGHTS, results)
    assert columns == ["", "offsetstore", "at-least-once"]
    assert ["duplicated", "0", "3,000"] in rows


def test_a_duplicate_of_the_at_least_once_job_does_not_matter(results: dict[JobName, Result]) -> None:
    assert is_proven(FLIGHTS, FLIGHTS, results)


@pytest.mark.parametrize("wrong", ["missing", "duplicated", "wrong_aggregates"])
def test_one_wrong_figure_of_ours_is_enough_to_fail(results: dict[JobName, Result], wrong: str) -> None:
    ours = results["offsetstore"]
    results["offsetstore"] = replace(ours, findings=replace(ours.findings, **{wrong: 1}))
    assert not is_proven(FLIGHTS, FLIGHTS, results)


def test_without_its_kills_nothing_is_proven(results: dict[JobName, Result]) -> None:
    results["offsetstore"].run.kills.pop()
    assert not is_proven(FLIGHTS, FLIGHTS, results)


@pytest.mark.parametrize("evidence", [{"in_batch": False}, {"exit_status": 1}])
def test_a_kill_counts_only_in_a_batch_and_if_it_killed(
    results: dict[JobName, Result], evidence: dict[str, int]
) -> None:
    kills = results["offsetstore"].run.kills
    kills[0] = replace(kills[0], **evidence)
    assert not is_proven(FLIGHTS, FLIGHTS, results)


def test_a_snapshot_of_rows_without_their_offsets_is_enough_to_fail(results: dict[JobName, Result]) -> None:
    results["offsetstore"].run.looks.append(Look(49, FLIGHTS, FLIGHTS - 1))
    assert not is_proven(FLIGHTS, FLIGHTS, results)


def test_what_kafka_does_not_have_can_not_be_counted(results: dict[JobName, Result]) -> None:
    assert not is_proven(FLIGHTS - 1, FLIGHTS, results)


@pytest.fixture
def with_letters() -> dict[JobName, Result]:
    ours = result("offsetstore")
    ours.run.looks[-1] = Look(48, FLIGHTS - 500, FLIGHTS, 500)
    return {"offsetstore": replace(ours, findings=Findings(FLIGHTS - 500, 0, 0, 0, letters=500))}


def test_a_flight_that_is_a_letter_is_not_missing(tmp_path: Path, with_letters: dict[JobName, Result]) -> None:
    assert is_proven(FLIGHTS, FLIGHTS, with_letters)
    assert equation(FLIGHTS, with_letters["offsetstore"].findings) == (
        "24,000 flights = 23,500 landed + 500 dead letters, none twice"
    )
    _, rows = summary(FLIGHTS, with_letters)
    assert [row for row in rows if "letters" in row[0]] == [["dead letters", "500"], ["wrong letters", "0"]]
    page = write_report(tmp_path, FLIGHTS, with_letters, seed=1).read_text()
    assert "+ 500 dead letters" in page
    assert "too few" not in page


@pytest.mark.parametrize("wrong", [{"wrong_letters": 1}, {"letters": 499}, {"letters": 501}, {"missing": 1}])
def test_one_wrong_letter_is_enough_to_fail(with_letters: dict[JobName, Result], wrong: dict[str, int]) -> None:
    ours = with_letters["offsetstore"]
    with_letters["offsetstore"] = replace(ours, findings=replace(ours.findings, **wrong))
    assert not is_proven(FLIGHTS, FLIGHTS, with_letters)


def test_a_snapshot_with_a_letter_too_few_is_enough_to_fail(with_letters: dict[JobName, Result]) -> None:
    with_letters["offsetstore"].run.looks.append(Look(49, FLIGHTS - 500, FLIGHTS, 499))
    assert not is_proven(FLIGHTS, FLIGHTS, with_letters)


def test_without_broken_flights_nothing_is_said_of_letters(tmp_path: Path, results: dict[JobName, Result]) -> None:
    _, rows = summary(FLIGHTS, results)
    assert not [row for row in rows if "letters" in row[0]]
    assert "dead letter" not in write_report(tmp_path, FLIGHTS, results, seed=1).read_text()


EXACT = Events(read=900, missing=0, duplicated=0, wrong_totals=0)


@pytest.fixture
def with_events(results: dict[JobName, Result]) -> dict[JobName, Result]:
    results["offsetstore"] = replace(results["offsetstore"], events=EXACT, relay_kills=[*RELAY_POINTS])
    return results


def test_the_events_are_counted_beside_the_flights(tmp_path: Path, with_events: dict[JobName, Result]) -> None:
    assert is_proven(FLIGHTS, FLIGHTS, with_events)
    _, rows = summary(FLIGHTS, with_events)
    assert rows[-6:-1] == [
        ["events in Kafka", "900", ""],
        ["missing events", "0", ""],
        ["duplicated events", "0", ""],
        ["wrong day totals", "0", ""],
        ["relay killed", "4", ""],
    ]
    assert "these 900 events" in write_report(tmp_path, FLIGHTS, with_events, seed=1).read_text()
    report = json.loads((tmp_path / "report.json").read_text())["offsetstore"]
    assert (report["events"]["read"], report["relay_kills"]) == (900, [*RELAY_POINTS])


@pytest.mark.parametrize("wrong", ["missing", "duplicated", "wrong_totals"])
def test_one_wrong_event_is_enough_to_fail(with_events: dict[JobName, Result], wrong: str) -> None:
    with_events["offsetstore"] = replace(with_events["offsetstore"], events=replace(EXACT, **{wrong: 1}))
    assert not is_proven(FLIGHTS, FLIGHTS, with_events)


def test_events_prove_nothing_if_the_relay_was_not_killed(with_events: dict[JobName, Result]) -> None:
    with_events["offsetstore"] = replace(with_events["offsetstore"], relay_kills=[*RELAY_POINTS][1:])
    assert not is_proven(FLIGHTS, FLIGHTS, with_events)


@pytest.mark.parametrize("largest", [3.2, 9, 47, 84, 155, 999, 1000, 23_400, 350_000, 413_000])
def test_an_axis_has_a_few_round_numbers(largest: float) -> None:
    found = ticks(largest)
    assert found[0] == 0
    assert largest * 0.6 < found[-1] <= largest
    assert 3 <= len(found) <= 6
