from __future__ import annotations

import pytest

from offsetstore import StartPolicy
from offsetstore.errors import ConfigurationError


@pytest.mark.parametrize("value", ["a datetime", "Earliest", 3, None])
def test_an_unknown_auto_offset_reset_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="unknown auto_offset_reset") as caught:
        StartPolicy(auto_offset_reset=value)  # pyright: ignore[reportArgumentType] - a user may
    assert caught.value.expected == "earliest or latest or none or a datetime"
