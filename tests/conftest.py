"""What every test may use."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in every run, so that a failure in CI is one everywhere. To search for new ones:
# HYPOTHESIS_PROFILE=search pytest tests/property
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = ["offsetstore.testing.fixtures", "tests.behaviours"]
