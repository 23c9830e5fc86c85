"""What every store must do: `TestPostgresOffsetStore` runs all of it, `TestInMemoryOffsetStore` a job's side.

A subclass has five fixtures: ``store``, an `OffsetStore` on empty tables; ``write(tx, numbers)``, which adds results
in the transaction; ``read()``, the numbers that are committed, sorted; ``outbox()``, the records that are; and
``letters``, which reads dead letters and decides about them. Results have no unique key, so that nothing hides a
duplicate.
"""

from __future__ import annotations

from tests.contract.admin import AdminContract
from tests.contract.fence import FenceContract
from tests.contract.fleets import FleetContract, PeopleFleetContract
from tests.contract.letters import LetterContract, PeopleLetterContract
from tests.contract.locks import LockContract
from tests.contract.logs import LogContract, PeopleLogContract
from tests.contract.marking import MarkingContract
from tests.contract.marks import MarkContract
from tests.contract.metadata import MetadataContract
from tests.contract.misuse import MisuseContract
from tests.contract.outbox import OutboxContract
from tests.contract.pauses import PauseContract, PeoplePauseContract
from tests.contract.plans import PlanContract
from tests.contract.replays import ReplayContract
from tests.contract.runs import RunContract
from tests.contract.samples import SampleContract
from tests.contract.together import TogetherContract


class JobContract(
    TogetherContract,
    MisuseContract,
    ReplayContract,
    LockContract,
    FenceContract,
    FleetContract,
    MetadataContract,
    MarkContract,
    MarkingContract,
    PauseContract,
    LetterContract,
    LogContract,
    OutboxContract,
):
    """A job's side; see the module."""


class OffsetStoreContract(
    AdminContract,
    PlanContract,
    RunContract,
    SampleContract,
    PeoplePauseContract,
    PeopleLetterContract,
    PeopleLogContract,
    PeopleFleetContract,
    JobContract,
):
    """The whole suite, with what people decide and read."""
