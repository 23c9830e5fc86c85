"""Where rows go: `Append`, `Upsert`, `Execute`, `Outbox`."""

from offsetstore.writers.append import Append
from offsetstore.writers.execute import Execute
from offsetstore.writers.outbox import Outbox
from offsetstore.writers.upsert import Upsert

__all__ = ["Append", "Execute", "Outbox", "Upsert"]
