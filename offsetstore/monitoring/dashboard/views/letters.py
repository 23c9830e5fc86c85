"""A group's dead letters, without the contents of their records: these columns are never read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.errors import ConfigurationError, UnknownGroup, UnknownLetter
from offsetstore.monitoring.dashboard.context import dashboard_of, group_of, link, number_in, show
from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from offsetstore.operations.stored_letters import ErrorGroup
from offsetstore.protocol.letters import CAUSES, OPEN, STATES

ON_A_PAGE: Final = 50
ERRORS: Final = 50
WITHIN: Final = 5_000
"""At most this many letters are counted, grouped, and searched at a time: a million take too long for a page."""

_NUMBER: Final = "the number of a partition, or an offset"
_OF_ERRORS: Final = ("error_class", "sqlstate", "table", "constraint", "column")

STATE_WORDS: Final = {
    "dead": "not in the results",
    "requested": "the job will put it into the results",
    "replayed": "in the results",
    "discarded": "given up",
    "superseded": "a job has read the record again since",
}


def letters(request: Request) -> Response:
    """Count the letters, group them by their errors, and list all that match a filter."""
    name = group_of(request).group
    store, query = dashboard_of(request).store, request.query_params
    state = query.get("state", "open")
    state = state if state in {*STATES, "all"} else "open"
    filters = _filters(request)
    try:
        page = store.letters(
            name,
            state=OPEN
            if state == "open"
            else None
            if state == "all"
            else [known for known in STATES if known == state],
            **filters,
            after=query.get("after"),
            limit=ON_A_PAGE,
            within=WITHIN if filters else None,
        )
    except ConfigurationError as error:
        raise HTTPException(400, error.what) from None
    errors = store.letter_errors(name, limit=ERRORS, within=WITHIN)
    same: dict[str, object] = {"group": name, "state": state, **filters}
    return show(
        request,
        "letters.html",
        group=name,
        counts=store.letter_counts(name, up_to=WITHIN),
        words=STATE_WORDS,
        within=WITHIN,
        errors=errors,
        is_part=sum(error.count for error in errors) >= WITHIN,
        link_of={error: _link_of(name, error) for error in errors},
        letters=page.letters,
        state=state,
        states=("open", *STATES, "all"),
        filters=filters,
        of_errors={key: value for key, value in filters.items() if key not in {"topic", "partition"}},
        newest=link("/letters", **same) if query.get("after") else None,
        older=link("/letters", **same, after=page.next) if page.next else None,
        without_error=link("/letters", group=name, state=state),
    )


def letter(request: Request) -> Response:
    """Show one letter, without its contents."""
    name = group_of(request).group
    query = request.query_params
    topic = _plain(query.get("topic", ""))
    partition, offset = (
        number_in(query.get("partition"), MAX_PARTITION, _NUMBER),
        number_in(query.get("offset"), MAX_OFFSET, _NUMBER),
    )
    if not topic or partition is None or offset is None:
        raise HTTPException(400, "A letter is named by its topic, partition and offset.")
    topic_id = query.get("topic_id")
    try:
        found = dashboard_of(request).store.letter(
            name,
            TopicPartition(topic, partition),
            offset,
            None if topic_id is None else _plain(topic_id),
            contents=False,
        )
    except (UnknownLetter, UnknownGroup) as error:
        raise HTTPException(404, error.what) from None
    return show(
        request,
        "letter.html",
        group=name,
        letter=found,
        is_open=found.state in OPEN,
        words=STATE_WORDS,
        named=[str(found.key), *([f"--topic-id={found.topic_id}"] if found.topic_id else [])],
    )


def _filters(request: Request) -> dict[str, Any]:
    """The parameters that narrow the list."""
    query = request.query_params
    found: dict[str, Any] = {}
    if cause := query.get("cause"):
        if cause not in CAUSES:
            raise HTTPException(400, "A dead letter has no such cause.")
        found["cause"] = cause
    # An empty one is a filter, too: for letters whose error has no such part.
    found |= {name: _plain(query[name]) for name in _OF_ERRORS if name in query}
    if topic := query.get("topic", "").strip():
        found["topic"] = _plain(topic)
    if partition := query.get("partition", "").strip():
        found["partition"] = number_in(partition, MAX_PARTITION, _NUMBER)
    return found


def _link_of(group: str, error: ErrorGroup) -> Mapping[str, str]:
    """The addresses of the error's letters, and of the newest of them."""
    which, (tp, offset, topic_id) = error.which, error.example
    same = {name: getattr(which, name) for name in ("cause", *_OF_ERRORS)}
    return {
        "letters": link("/letters", group=group, **same),
        "example": link(
            "/letter", group=group, topic=tp.topic, partition=tp.partition, offset=offset, topic_id=topic_id
        ),
    }


def _plain(text: str) -> str:
    # PostgreSQL has no text with a NUL, so nothing can have such a name.
    if "\0" in text:
        raise HTTPException(400, "A name has no NUL in it.")
    return text


ROUTES: Final = [Route("/letters", letters), Route("/letter", letter)]
