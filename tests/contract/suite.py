"""What every store must do on every database: `TestInMemoryOffsetStore` and `TestPostgresOffsetStore` run it.

A subclass has three fixtures: ``store``, an `OffsetStore` on empty tables; ``write(tx, numbers)``, which adds results
in the transaction; and ``read()``, the numbers that are committed, sorted. Results have no unique key, so that nothing
hides a duplicate.
"""

from __future__ import annotations

from tests.contract.admin import AdminContract
from tests.contract.fence import FenceContract
from tests.contract.letters import LetterContract
from tests.contract.locks import LockContract
from tests.contract.logs import LogContract
from tests.contract.marking import MarkingContract
from tests.contract.marks import MarkContract
from tests.contract.metadata import MetadataContract
from tests.contract.misuse import MisuseContract
from tests.contract.pauses import PauseContract
from tests.contract.plans import PlanContract
from tests.contract.replays import ReplayContract
from tests.contract.runs import RunContract
from tests.contract.samples import SampleContract
from tests.contract.together import TogetherContract


class OffsetStoreContract(
    TogetherContract,
    MisuseContract,
    ReplayContract,
    LockContract,
    FenceContract,
    MetadataContract,
    MarkContract,
    MarkingContract,
    AdminContract,
    PauseContract,
    PlanContract,
    LetterContract,
    RunContract,
    SampleContract,
    LogContract,
):
    """The whole suite; see the module."""
