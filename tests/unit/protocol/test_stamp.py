from __future__ import annotations

from uuid import UUID

import pytest

from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.store_facts import MAX_COMMITTED_BYTES, Stamp, digest, latest_epoch

US, THEM = UUID(int=7), UUID(int=8)


@pytest.mark.behaviour("MIRROR-6")
@pytest.mark.parametrize("group", [digest("billing"), None], ids=["this version", "the version before"])
@pytest.mark.parametrize("metadata", [None, "", "text", '{"a": "ü;☃"}', "offsetstore:1:no stamp", "\n"])
def test_it_is_read_back_whatever_follows_it(metadata: str | None, group: str | None) -> None:
    text = Stamp(US, 42, group).text(metadata)

    assert text.endswith(metadata or ";")
    assert Stamp.of(CommittedOffset(7, text)) == Stamp(US, 42, group)


@pytest.mark.behaviour("MIRROR-7")
def test_it_tells_the_groups_of_a_store_apart_but_for_the_version_before_which_lacks_them() -> None:
    ours, theirs = digest("billing"), digest("invoicing")

    assert Stamp(US, 1, ours).is_of(US, ours)
    assert Stamp(US, 1).is_of(US, ours)
    assert not Stamp(US, 1, theirs).is_of(US, ours)
    assert not Stamp(THEM, 1, ours).is_of(US, ours)
    assert not Stamp(THEM, 1).is_of(US, None)


@pytest.mark.parametrize("group", ["b" * 5000, "größer ☃", "a:b;c"])
def test_a_group_s_name_takes_no_more_room_than_another(group: str) -> None:
    text = Stamp(US, 2**62, digest(group)).text()

    assert len(text) == len(text.encode()) == 84
    assert Stamp.of(CommittedOffset(7, text)) == Stamp(US, 2**62, digest(group))


@pytest.mark.behaviour("META-11")
@pytest.mark.parametrize("letter", ["x", "ü", "☃"])
def test_metadata_that_would_make_it_too_long_is_left_out(letter: str) -> None:
    stamp = Stamp(US, 1, digest("billing"))
    room = MAX_COMMITTED_BYTES - len(stamp.text())
    fits = letter * (room // len(letter.encode()))

    assert stamp.text(fits) == stamp.text() + fits
    assert len(stamp.text(fits).encode()) <= MAX_COMMITTED_BYTES
    assert stamp.text(fits + letter) == stamp.text()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "another tool's",
        '{"trace": 1}',
        f" offsetstore:1:{US}:1;",
        f"offsetstore:2:{US}:1;",
        f"offsetstore:2:{'a' * 11}:{US}:1;",
        f"offsetstore:2:{'g' * 12}:{US}:1;",
        f"offsetstore:1:{'a' * 12}:{US}:1;",
        f"offsetstore:3:{'a' * 12}:{US}:1;",
        f"offsetstore:1:{US}:;",
        f"offsetstore:1:{US}:-1;",
        f"offsetstore:1:{US}:1.5;",
        f"offsetstore:1:{US}:{2**63};",
        f"offsetstore:1:{US}:{'9' * 30};",
        f"offsetstore:1:{'-' * 36}:1;",
    ],
)
def test_what_others_commit_is_no_stamp(text: str | None) -> None:
    assert Stamp.of(CommittedOffset(7, text)) is Stamp.of(None) is None


@pytest.mark.behaviour("START-6")
def test_the_latest_epoch_is_that_of_the_store_s_own_stamps() -> None:
    texts = [Stamp(US, 3).text(), Stamp(US, 5).text("more"), Stamp(THEM, 9).text(), None, "another tool's"]

    assert latest_epoch([CommittedOffset(1, text) for text in texts], US) == 5
    assert latest_epoch([], US) == 0
