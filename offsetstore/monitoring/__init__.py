"""What a job shows of itself: its health, its metrics for Prometheus, its traces for OpenTelemetry.

Metrics and traces need an extra each, so they are loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetstore.lazy import load
from offsetstore.monitoring.health import Code, Limits, Verdict

if TYPE_CHECKING:
    from offsetstore.monitoring.metrics import Metrics
    from offsetstore.monitoring.server import Monitoring
    from offsetstore.monitoring.tracing import Tracing

__all__ = ["Code", "Limits", "Metrics", "Monitoring", "Tracing", "Verdict"]

_LAZY = {
    "Metrics": ("offsetstore.monitoring.metrics", "monitoring"),
    "Monitoring": ("offsetstore.monitoring.server", "monitoring"),
    "Tracing": ("offsetstore.monitoring.tracing", "opentelemetry"),
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _LAZY)
