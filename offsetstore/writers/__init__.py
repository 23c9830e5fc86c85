"""Where rows go: `Append`, `Upsert`, `Execute`, `Outbox`."""

from offsetstore.writers.execute import Execute
from offsetstore.writers.into_table import Append, Upsert
from offsetstore.writers.outbox import Outbox

__all__ = ["Append", "Execute", "Outbox", "Upsert"]
