"""What a job shows of itself: its metrics for Prometheus."""

from __future__ import annotations

from offsetstore.monitoring.metrics import Metrics
from offsetstore.monitoring.server import Monitoring

__all__ = ["Metrics", "Monitoring"]
