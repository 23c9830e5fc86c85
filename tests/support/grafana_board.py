"""``make board``: offsetstore/assets/grafana/offsetstore.json, from the rows and panels here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

BOARD: Final = Path(__file__).parents[2] / "offsetstore" / "assets" / "grafana" / "offsetstore.json"

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_YES_NO: Final = [{"type": "value", "options": {"0": {"text": "no"}, "1": {"text": "yes"}}}]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: ``queries`` are expressions by legend; ``G`` in one stands for the chosen groups."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str
    kind: str = "timeseries"


ROWS: Final = {
    "State": (
        Panel("Live", "none", {"{{consumergroup}}": "offsetstore_group_live{G}"},
              "Whether a job owns the group and sends heartbeats.", "stat"),
        Panel("Paused", "none", {"{{consumergroup}}": "offsetstore_group_paused{G}"},
              "Whether the group is paused.", "stat"),
        Panel("Since the last advance", "s",
              {"{{consumergroup}}": "time() - offsetstore_group_last_advance_timestamp_seconds{G}"},
              "Time since a stored offset last changed. It grows while nothing is unread, too.", "stat"),
        Panel("Firing alerts", "none",
              {"{{alertname}} {{consumergroup}}":
               'count by (alertname, consumergroup) (ALERTS{G, alertstate="firing"})'},
              "Of docs/runbook.md.", "stat"),
    ),
    "Lag": (
        Panel("Lag in records", "short", {"{{consumergroup}} {{topic}}": "kafka_consumergroup_lag_sum{G}"},
              "Offsets from the stored ones to the high watermarks."),
        Panel("Lag in time", "s", {"{{consumergroup}} {{topic}}": "offsetstore_group_lag_seconds{G}"},
              "The age of the oldest unread record."),
        Panel("Partitions that no job reads, or that stand", "short",
              {"{{consumergroup}} unread": "offsetstore_group_unread_partitions{G}",
               "{{consumergroup}} standing": "offsetstore_group_standing_partitions{G}",
               "{{consumergroup}} pinned": "offsetstore_group_pinned_partitions{G}"},
              "Unread: without a stored offset. Standing: for 15 minutes, while others advance. "
              "Pinned: set by a decision, not copied to Kafka yet."),
    ),
    "Headroom": (
        Panel("Headroom", "short", {"{{consumergroup}} {{topic}}": "offsetstore_group_headroom_offsets{G}"},
              "Offsets that retention can remove before an unread one, in the partition that is closest."),
        Panel("Removed by retention in a day", "short",
              {"{{topic}}": "max by (topic) (kafka_topic_partition_oldest_offset"
               " - kafka_topic_partition_oldest_offset offset 1d)"},
              "By how much the beginning of the log moved, in the partition where it moved most."),
        Panel("Open transactions in Kafka", "short", {"{{topic}}": "offsetstore_topic_open_transaction_offsets"},
              "Offsets from the last stable ones to the high watermarks."),
    ),
    "Batches": (
        Panel("Offsets", "ops",
              {"{{consumergroup}} {{topic}} {{outcome}}":
               "sum by (consumergroup, topic, outcome) (rate(offsetstore_offsets_total{G}[$__rate_interval]))"},
              "A second, by outcome."),
        Panel("Rows", "ops",
              {"{{consumergroup}} {{output}}":
               "sum by (consumergroup, output) (rate(offsetstore_rows_written_total{G}[$__rate_interval]))"},
              "Committed rows a second, by output."),
        Panel("Phases of batches", "s",
              {"{{consumergroup}} {{phase}}":
               "sum by (consumergroup, phase) (rate(offsetstore_batch_phase_seconds_sum{G}[$__rate_interval]))"
               " / sum by (consumergroup, phase) (rate(offsetstore_batch_phase_seconds_count{G}[$__rate_interval]))"},
              "The mean time of each phase."),
        Panel("Time of batches", "s",
              {f"{{{{consumergroup}}}} {quantile}":
               f"histogram_quantile({quantile}, sum by (consumergroup, le)"
               " (rate(offsetstore_batch_duration_seconds_bucket{G}[$__rate_interval])))"
               for quantile in (0.5, 0.95)},
              "Median and 95th percentile, from the arrival at the sink to the end."),
    ),
    "Errors, retries and dead letters": (
        Panel("Batches by outcome", "ops",
              {"{{consumergroup}} {{outcome}}":
               "sum by (consumergroup, outcome) (rate(offsetstore_batches_total{G}[$__rate_interval]))"},
              "A second. A failed batch ends the query, and often the process before its last scrape."),
        Panel("Errors and retries", "short",
              {"{{consumergroup}} {{error}}":
               "sum by (consumergroup, error) (increase(offsetstore_errors_total{G}[$__rate_interval]))",
               "{{consumergroup}} retried {{reason}}":
               "sum by (consumergroup, reason) (increase(offsetstore_retries_total{G}[$__rate_interval]))",
               "{{consumergroup}} lost commit {{outcome}}":
               "sum by (consumergroup, outcome) (increase(offsetstore_lost_commits_total{G}[$__rate_interval]))"},
              "By class. `offsetstore errors` shows those of a process that is gone, too."),
        Panel("Open dead letters", "short", {"{{consumergroup}} {{state}}": "offsetstore_group_dead_letters{G}"},
              "Records that are not in the results, and may still get there."),
        Panel("New dead letters", "short",
              {"{{consumergroup}} {{cause}}":
               "sum by (consumergroup, cause) (increase(offsetstore_dead_letters_total{G}[$__rate_interval]))"},
              "By cause."),
    ),
    "Mirror": (
        Panel("Lag of Kafka's group", "short", {"{{consumergroup}}": "offsetstore_group_mirror_lag_offsets{G}"},
              "Offsets by which the copies in Kafka are behind the stored ones."),
        Panel("Since the last copy", "s",
              {"{{consumergroup}}": "time() - offsetstore_mirror_last_success_timestamp_seconds{G}"},
              "Time since Kafka's group was last found or made equal."),
    ),
    "Claims and surroundings": (
        Panel("Epoch", "short", {"{{consumergroup}}": "offsetstore_group_claim_epoch{G}"},
              "Grows by one with each claim: a deploy is one step."),
        Panel("Age of the last heartbeat", "s", {"{{consumergroup}}": "offsetstore_group_heartbeat_age_seconds{G}"},
              "Absent if the job has left cleanly."),
        Panel("Oldest transaction of the database", "s", {"seconds": "offsetstore_oldest_transaction_seconds"},
              "Vacuum can't remove what it may still see."),
        Panel("Exporter", "none", {"{{target}}": "offsetstore_exporter_up"},
              "Whether the last refresh got an answer.", "stat"),
    ),
}  # fmt: skip


def text() -> str:
    """Return the board, as Grafana imports it."""
    board: dict[str, Any] = {
        "uid": "offsetstore",
        "title": "offsetstore",
        "tags": ["kafka", "offsetstore"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }
    return json.dumps(board, indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    query = "label_values(offsetstore_group_live, consumergroup)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "consumergroup",
            "label": "Group",
            "type": "query",
            "datasource": _DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": "consumergroup"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    numbers = count(1)
    y = 0
    for title, panels in ROWS.items():
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        made.append({"id": next(numbers), "type": "row", "title": title, "collapsed": False, "gridPos": place})
        width = _COLUMNS // len(panels)
        for column, panel in enumerate(panels):
            place = {"x": column * width, "y": y + 1, "w": width, "h": _HEIGHT}
            made.append({"id": next(numbers), "gridPos": place, **_panel(panel)})
        y += 1 + _HEIGHT
    return made


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.title in {"Live", "Paused", "Exporter"}:
        defaults["mappings"] = _YES_NO
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": expression.replace("{G", '{consumergroup=~"$consumergroup"'),
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    BOARD.write_text(text(), encoding="utf-8")
