"""What every store must do on every database: a pytest suite to be subclassed.

::

    class TestMyStore(OffsetStoreContract):
        @pytest.fixture
        def store(self): ...            # an OffsetStore on empty tables, closed afterwards

        @pytest.fixture
        def write(self): ...            # write(tx, numbers): add results in the transaction

        @pytest.fixture
        def read(self, store): ...      # read() -> the numbers that are committed, sorted

Results must be kept without a unique key, so that nothing hides a duplicate. Each test names the lines of the list of
behaviours that it proves, in a mark ``behaviour(*ids)``: register it if pytest is strict about marks.
"""

from __future__ import annotations

from offsetstore.testing.contract.admin import AdminContract
from offsetstore.testing.contract.fence import FenceContract
from offsetstore.testing.contract.letters import LetterContract
from offsetstore.testing.contract.locks import LockContract
from offsetstore.testing.contract.logs import LogContract
from offsetstore.testing.contract.marking import MarkingContract
from offsetstore.testing.contract.marks import MarkContract
from offsetstore.testing.contract.metadata import MetadataContract
from offsetstore.testing.contract.misuse import MisuseContract
from offsetstore.testing.contract.pauses import PauseContract
from offsetstore.testing.contract.plans import PlanContract
from offsetstore.testing.contract.replays import ReplayContract
from offsetstore.testing.contract.runs import RunContract
from offsetstore.testing.contract.samples import SampleContract
from offsetstore.testing.contract.together import TogetherContract


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
