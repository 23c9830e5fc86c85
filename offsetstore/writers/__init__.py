"""Where rows go: `Append`, `Upsert`, `Execute`, `Outbox`."""

from offsetstore.writers.execute import Execute
from offsetstore.writers.into_table import Append
from offsetstore.writers.outbox import Outbox
from offsetstore.writers.upsert import Upsert

__all__ = ["Append", "Execute", "Outbox", "Upsert"]
