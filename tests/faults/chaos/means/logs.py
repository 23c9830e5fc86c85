"""What a job has written to its log, as evidence."""

from __future__ import annotations

import re

from tests.faults.chaos.harness.scene import Job

_REPEATED = re.compile(r"attempt \d+ failed \((\w+)\)")


def repeated_for(job: Job) -> list[str]:
    """The errors for which work has been done again, oldest first; of all jobs of its process."""
    return _REPEATED.findall(job.process.log.read_text(encoding="utf-8", errors="replace"))
