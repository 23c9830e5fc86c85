"""The flights, what is broken of them, and what the ledger counts."""

from __future__ import annotations

import json

from offsetstore.demo.flights import ALL, KINDS, Delays, Ledger, as_json, choose, read_flights, records_of

FLIGHTS = 2000


def test_a_flight_is_a_line_of_the_csv_in_which_na_is_null() -> None:
    flights = list(read_flights(1000))
    first = flights[0]
    assert (first["flight_id"], first["carrier"], first["flight"], first["dep_delay"]) == (1, "UA", 1545, 2)
    assert json.loads(as_json(first)) == first
    cancelled = next(flight for flight in flights if flight["dep_time"] is None)
    assert (cancelled["dep_delay"], cancelled["arr_delay"], cancelled["air_time"]) == (None, None, None)


def test_a_cancelled_flight_has_no_delay_and_an_early_one_a_negative() -> None:
    delays = Delays()
    for departure, arrival in [(None, None), (-3, -20), (30, 25), (5, None)]:
        delays.add({"dep_time": departure and 600, "dep_delay": departure, "arr_delay": arrival})
    assert delays == Delays(flights=4, cancelled=1, departure_delay=32, arrival_delay=5, worst_arrival_delay=25)


def test_the_ledger_counts_the_whole_year() -> None:
    ledger = Ledger()
    for flight in read_flights():
        ledger.enter(flight)
    assert ledger.flights == ALL == sum(delays.flights for delays in ledger.delays.values())
    assert len(ledger.delays) == 185
    assert sum(delays.cancelled for delays in ledger.delays.values()) == 8255


def test_a_seed_breaks_the_same_flights_each_time_as_many_of_each_kind() -> None:
    broken = choose(100, FLIGHTS, 7)
    assert broken == choose(100, FLIGHTS, 7)
    assert broken != choose(100, FLIGHTS, 8)
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
