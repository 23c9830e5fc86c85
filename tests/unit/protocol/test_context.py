"""Which headers follow a record."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from offsetstore import current_headers
from offsetstore.errors import ConfigurationError
from offsetstore.protocol.context import as_current, check_propagate, propagated

ALL = (("tenant", b"a"), ("secret", b"s"), ("Tenant", b"A"), ("trace", None), ("tenant", b"\xff"))


@pytest.mark.behaviour("CTX-1")
def test_only_named_headers_follow_a_record_as_they_are_and_in_their_order() -> None:
    assert propagated(ALL, ("trace", "tenant")) == (("tenant", b"a"), ("trace", None), ("tenant", b"\xff"))
    assert propagated(ALL, ["absent"]) == propagated(ALL, ()) == propagated((), ("tenant",)) == ()
    assert propagated(None, ("tenant",)) == ()


@pytest.mark.behaviour("CTX-1")
@pytest.mark.parametrize("names", ["tenant", b"tenant", ("tenant", b"trace"), ("tenant", ""), None, {"tenant": True}])
def test_what_is_no_list_of_names_is_refused(names: Any) -> None:
    """A text is a list of letters to Python, none of which is a header."""
    with pytest.raises(ConfigurationError, match="propagate must list the names of headers") as refused:
        check_propagate(names)
    assert refused.value.found == repr(names)


@pytest.mark.parametrize("names", [(), ("tenant",), ["tenant", "trace"], {"tenant"}, frozenset({"tenant"})])
def test_lists_of_names(names: Any) -> None:
    check_propagate(names)


@pytest.mark.behaviour("CTX-4")
def test_headers_are_those_of_the_innermost_block_and_gone_after_it() -> None:
    assert current_headers() == ()
    with as_current(ALL):
        with suppress(KeyError), as_current(()):
            assert current_headers() == ()
            raise KeyError
        assert current_headers() == ALL
    assert current_headers() == ()
