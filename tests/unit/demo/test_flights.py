from __future__ import annotations

import json

from offsetstore.demo.flights import ALL, Delays, Ledger, as_json, read_flights


def test_the_first_line_of_the_csv_is_flight_1() -> None:
    (flight,) = read_flights(1)
    assert (flight["flight_id"], flight["carrier"], flight["flight"], flight["dep_delay"]) == (1, "UA", 1545, 2)
    assert json.loads(as_json(flight)) == flight


def test_what_the_csv_has_as_na_is_null() -> None:
    cancelled = next(flight for flight in read_flights(1000) if flight["dep_time"] is None)
    assert (cancelled["dep_delay"], cancelled["arr_delay"], cancelled["air_time"]) == (None, None, None)


def test_the_ledger_counts_what_is_entered() -> None:
    ledger = Ledger()
    for flight in read_flights(500):
        ledger.enter(flight)
    assert ledger.flights == 500
    assert sum(delays.flights for delays in ledger.delays.values()) == 500


def test_a_cancelled_flight_has_no_delay_and_an_early_one_a_negative() -> None:
    delays = Delays()
    for departure, arrival in [(None, None), (-3, -20), (30, 25), (5, None)]:
        delays.add({"dep_time": departure and 600, "dep_delay": departure, "arr_delay": arrival})
    assert delays == Delays(flights=4, cancelled=1, departure_delay=32, arrival_delay=5, worst_arrival_delay=25)


def test_the_whole_year_is_there() -> None:
    ledger = Ledger()
    for flight in read_flights():
        ledger.enter(flight)
    assert ledger.flights == ALL
    assert len(ledger.delays) == 185
    assert sum(delays.cancelled for delays in ledger.delays.values()) == 8255
