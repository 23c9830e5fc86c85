from __future__ import annotations

import json

import pytest

from offsetstore.demo.flights import Ledger, as_json, read_flights
from offsetstore.demo.poison import KINDS, choose, records_of

FLIGHTS = 2000


def test_a_seed_breaks_the_same_flights_each_time() -> None:
    assert choose(100, FLIGHTS, 7) == choose(100, FLIGHTS, 7)
    assert choose(100, FLIGHTS, 7) != choose(100, FLIGHTS, 8)


def test_there_are_as_many_of_each_kind() -> None:
    broken = choose(100, FLIGHTS, 13)
    assert len(broken) == 100
    assert all(1 <= flight_id <= FLIGHTS for flight_id in broken)
    assert {sum(kind is one for kind in broken.values()) for one in KINDS} == {25}


def test_a_broken_flight_is_produced_in_its_place_and_is_in_no_sum() -> None:
    broken = choose(40, FLIGHTS, 13)
    ledger = Ledger()
    flights = list(read_flights(FLIGHTS))
    records = list(records_of(flights, broken, ledger))

    assert len(records) == ledger.flights == FLIGHTS
    assert ledger.letters.keys() == broken.keys()
    assert sum(delays.flights for delays in ledger.delays.values()) == FLIGHTS - 40
    for flight, record in zip(flights, records, strict=True):
        if letter := ledger.letters.get(flight["flight_id"]):
            assert (letter.key, letter.value) == (record.key, record.value)
            assert record.value != as_json(flight)
        else:
            assert record.value == as_json(flight)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.words)
def test_only_what_is_rejected_is_no_json(kind: object) -> None:
    (chosen,) = (one for one in KINDS if one is kind)
    (flight,) = read_flights(1)
    value = chosen.spoil(flight)
    if chosen.cause == "rejected":
        with pytest.raises(json.JSONDecodeError):
            json.loads(value)
    else:
        found = json.loads(value)
        assert [found[name] != flight[name] for name in flight].count(True) == 1
