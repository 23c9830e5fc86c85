"""Where a micro-batch's rows go: `Append`, `Upsert`, `Execute`."""

from offsetstore.writers.append import Append
from offsetstore.writers.execute import Execute
from offsetstore.writers.upsert import Upsert

__all__ = ["Append", "Execute", "Upsert"]
