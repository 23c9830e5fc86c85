from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore.errors import MetadataError
from offsetstore.protocol import metadata

short = st.text("aé数🦆\0\"'\\")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | short,
    lambda inner: st.lists(inner) | st.dictionaries(short, inner),
)


@pytest.mark.behaviour("META-1")
@given(values)
def test_a_json_value_comes_back_as_it_was(value: object) -> None:
    text = metadata.JSON.dump(value)

    assert metadata.JSON.load(text) == value
    assert (text is None) == (value is None)
    assert "\0" not in (text or "")  # PostgreSQL's text can't hold it


@given(st.text(st.characters()))
def test_a_text_comes_back_or_is_refused(value: str) -> None:
    try:
        text = metadata.JSON.dump(value)
    except MetadataError:
        with pytest.raises(UnicodeEncodeError):
            value.encode()
        return
    assert metadata.JSON.load(text) == value
