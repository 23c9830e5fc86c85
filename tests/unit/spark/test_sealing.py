from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore.spark.sealing import new_key, seal, unseal


@given(st.text(max_size=600))
def test_who_has_the_key_reads_what_was_sealed(text: str) -> None:
    key = new_key()
    assert unseal(key, seal(key, text)).rstrip(" ") == text.rstrip(" ")


def test_the_same_text_looks_different_each_time_and_is_not_to_be_seen() -> None:
    key = new_key()
    first, second = seal(key, "canary"), seal(key, "canary")
    assert first != second
    assert "canary" not in first
    assert len(first) == len(seal(key, "a longer canary"))


def test_another_key_and_a_changed_text_are_refused() -> None:
    key = new_key()
    sealed = seal(key, "canary")
    with pytest.raises(ValueError, match="another key"):
        unseal(new_key(), sealed)
    with pytest.raises(ValueError, match="another key"):
        unseal(key, sealed[:-8] + ("A" * 8 if sealed[-8:] != "A" * 8 else "B" * 8))
