"""All named mutants, those that need no server first, and those that need Spark last."""

from __future__ import annotations

from typing import Final

from tests.mutants.consumer_mutants import CONSUMER
from tests.mutants.end_mutants import END
from tests.mutants.fleet_mutants import FLEETS
from tests.mutants.handler_mutants import HANDLERS
from tests.mutants.letter_mutants import LETTERS
from tests.mutants.mutant import Mutant
from tests.mutants.operating_mutants import OPERATING
from tests.mutants.outbox_mutants import OUTBOX
from tests.mutants.replay_mutants import REPLAYS
from tests.mutants.shown_mutants import SHOWN
from tests.mutants.spark_mutants import SPARK
from tests.mutants.start_mutants import START
from tests.mutants.store_mutants import STORE
from tests.mutants.supervisor_mutants import SUPERVISOR
from tests.mutants.value_mutants import VALUES

MUTANTS: Final[tuple[Mutant, ...]] = (
    *START,
    *STORE,
    *FLEETS,
    *CONSUMER,
    *SUPERVISOR,
    *OPERATING,
    *SHOWN,
    *END,
    *VALUES,
    *LETTERS,
    *REPLAYS,
    *HANDLERS,
    *OUTBOX,
    *SPARK,
)
