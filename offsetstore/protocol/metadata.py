"""The metadata of an offset: a text in the offset's row, written in the same transaction; by default JSON.

Karafka calls this offset metadata: a note from the job to the next owner of the offset. It is never a pickle: the next
owner may use another version or language, and loading an attacker's pickle runs code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from offsetstore.errors import ConfigurationError, MetadataError, as_raised
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.arguments import misplaced
from offsetstore.runtime.functions import call

MAX_BYTES: Final = 1 << 20
"""The largest metadata in bytes of UTF-8, 1 MiB."""


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP
"""An advance without metadata keeps the row's."""

Text: TypeAlias = str | None
"""A row's metadata, ``None`` without any."""


def to_json(value: object) -> str:
    """Write a JSON value as text.

    :raises MetadataError: not a JSON value.
    """
    try:
        # `json.dumps` would convert other keys to text: 1 and "1" would become one key.
        _refuse_other_keys(value)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(value, error) from None


def from_json(text: str) -> object:
    """Read the value of a text that `to_json` wrote.

    :raises MetadataError: the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MetadataError(
            "the stored metadata is not JSON",
            found=f"{len(text)} characters",
            expected="JSON",
            next_step="Read it with the deserializer of the job that wrote it (metadata=, formats=), or correct it: "
            "offsetstore metadata set, or --clear.",
        ) from None


@dataclass(frozen=True, slots=True)
class Metadata:
    """How a job's metadata are written and read.

    :param serializer: converts a value to text. It never gets ``None``, which is stored as no metadata. Not `pickle`,
        which returns bytes; loading them runs code.
    :param deserializer: converts that text to the value.
    :param cache: whether reads return what was stored when the group was claimed, without a query; a single read can
        choose otherwise.
    """

    serializer: Callable[[Any], str] = to_json
    deserializer: Callable[[str], Any] = from_json
    cache: bool = True

    def dump(self, value: object) -> Text:
        """Return the text for the table, ``None`` for ``None``.

        :raises MetadataError: the serializer fails or returns something else, or its text is larger than `MAX_BYTES`.
        """
        if value is None:
            return None
        try:
            text = call(self.serializer, value)
        except MetadataError:
            raise
        except Exception as error:
            raise MetadataError(
                "the metadata's serializer failed; nothing was written",
                found=f"{type(as_raised(error)).__name__}, for a value of type {type(value).__name__}",
            ) from error
        return _checked(text)

    def load(self, text: Text) -> object:
        """Return the value of a stored text, ``None`` for ``None``.

        :raises MetadataError: the deserializer fails.
        """
        if text is None:
            return None
        try:
            return call(self.deserializer, text)
        except MetadataError:
            raise
        except Exception as error:
            raise MetadataError(
                "the metadata's deserializer failed",
                found=f"{type(as_raised(error)).__name__}, for {len(text)} characters",
                next_step="The stored text stays as it is, and the job may go on without it.",
            ) from error


JSON: Final = Metadata()

Formats: TypeAlias = Metadata | Mapping[str, Metadata] | Mapping[str | None, Metadata] | None
"""One format for all topics, or one for each topic and, under ``None``, one for the others; by default JSON."""


def format_of(formats: Formats, topic: str) -> Metadata:
    if formats is None or isinstance(formats, Metadata):
        return formats or JSON
    by_topic = cast("Mapping[str | None, Metadata]", formats)
    return by_topic.get(topic) or by_topic.get(None) or JSON


def load(formats: Formats, tp: TopicPartition, text: Text) -> object:
    """Read the value of a partition's text.

    :raises MetadataError: the deserializer fails; the error names the partition.
    """
    try:
        return format_of(formats, tp.topic).load(text)
    except MetadataError as error:
        error.locate(tp)
        raise


def dump(formats: Formats, partitions: Collection[TopicPartition], value: object) -> dict[TopicPartition, Text]:
    """Return the value's text for each partition.

    :raises MetadataError: the serializer fails.
    """
    by_topic = {topic: format_of(formats, topic).dump(value) for topic in {tp.topic for tp in partitions}}
    return {tp: by_topic[tp.topic] for tp in partitions}


def check_formats(formats: object, topics: tuple[str, ...]) -> None:
    """Check the argument ``metadata`` of a claim.

    :raises ConfigurationError: it is no `Formats`, or names a topic that the claim does not have.
    """
    named = cast("Mapping[object, object]", formats) if isinstance(formats, Mapping) else {None: formats}
    if not all(isinstance(format_, (Metadata, type(None))) for format_ in named.values()):
        raise ConfigurationError(
            "metadata must be a Metadata, or a mapping of topics to these",
            found=", ".join(sorted({type(format_).__name__ for format_ in named.values()})),
            expected="Metadata(serializer=..., deserializer=...)",
        )
    unknown = sorted(str(topic) for topic in named if topic is not None and topic not in topics)
    if unknown:
        raise ConfigurationError(
            "metadata names topics that the claim does not have",
            found=", ".join(unknown),
            expected=", ".join(topics),
        )


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise MetadataError(
            "the metadata's serializer returned no text; nothing was written",
            found=type(text).__name__,
            expected="str",
            next_step="Encode bytes as text, for example as base64.",
        )
    if (found := misplaced(text)) is not None:
        raise MetadataError(
            "the metadata can't be stored; nothing was written",
            found=found,
            expected="text without NUL and lone surrogates",
            next_step="Correct the value, or escape such characters in a serializer: Metadata(serializer=...).",
        )
    if (size := len(text.encode())) > MAX_BYTES:
        raise MetadataError(
            "the metadata is too large",
            found=f"{size:,} bytes",
            expected=f"at most {MAX_BYTES:,}",
            next_step="Nothing was written; store the large part in your own table, and only its key here.",
        )
    return text


def _not_json(value: object, error: Exception) -> MetadataError:
    return MetadataError(
        "the metadata can't be written as JSON",
        found=f"{type(value).__name__} ({type(error).__name__})",
        expected="strings, finite numbers, booleans, None, lists, and dicts of these with strings as keys",
        next_step="Nothing was written; convert the value first, or claim with metadata=Metadata(serializer=...).",
    )


def _refuse_other_keys(value: object) -> None:
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        if not all(isinstance(key, str) for key in members):
            raise TypeError("a key is not a string")
        for member in members.values():
            _refuse_other_keys(member)
    elif isinstance(value, (list, tuple)):
        for member in cast("list[object]", value):
            _refuse_other_keys(member)
