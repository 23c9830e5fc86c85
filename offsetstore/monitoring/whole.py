"""Probes and metrics of a consumer's processes, served together by their supervisor. A job needs none of this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offsetstore.monitoring.health import Verdict
from offsetstore.monitoring.processes import Supervisor
from offsetstore.monitoring.server import Monitoring

FAILURES: Final = "offsetstore_consumer_process_failures"
READY: Final = "offsetstore_consumer_processes_ready"


class WholeMonitoring(Monitoring):
    """Serves what the processes report: see `Supervisor.health`; each series has the label ``process``, from 0.

    :raises ConfigurationError: as for `Monitoring`.
    """

    def __init__(self, supervisor: Supervisor, port: int, *, host: str, token: str | None) -> None:
        self._supervisor = supervisor
        super().__init__(port, host=host, token=token)
        self._served = CollectorRegistry()
        self._served.register(_Reported(supervisor))

    def health(self) -> Verdict:
        return self._supervisor.health()


class _Reported(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        """The last metrics of each process, family by family, and what the supervisor knows."""
        families: dict[str, Metric] = {}
        for place in self._supervisor.places:
            process = place.process
            report = process and process.report
            metrics: Iterable[Metric] = () if report is None else report.metrics
            for metric in metrics:
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.samples.append(sample._replace(labels={**sample.labels, "process": str(place.number)}))
        failures = CounterMetricFamily(FAILURES, "Processes that failed, and were replaced or ended all.")
        failures.add_metric((), self._supervisor.failures)
        ready = GaugeMetricFamily(READY, "Processes that consume, or wait because their group is paused.")
        ready.add_metric((), sum(place.is_ready for place in self._supervisor.places))
        return *families.values(), failures, ready
