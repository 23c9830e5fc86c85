"""One partition of a group: all its numbers, its metadata, and what was decided about it."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.monitoring.dashboard.context import dashboard_of, group_of, lag_of, number_of, show
from offsetstore.offsets import TopicPartition
from offsetstore.operations.lag import GroupLag
from offsetstore.protocol.metadata import Metadata

DECISIONS: Final = 50
LETTERS: Final = 20
_METADATA: Final = 20_000  # characters
_AS_TEXT: Final = Metadata(serializer=str, deserializer=str)


def partition(request: Request) -> Response:
    """Show one, with three queries."""
    group, lag = group_of(request)
    tp = _asked(request, lag)
    topic = lag.topics[tp.topic]
    one = topic.partitions[tp.partition]
    store = dashboard_of(request).store
    metadata = store.find_metadata(group, tp.topic, tp.partition, formats=_AS_TEXT)
    decisions = store.history(group, topic_partition=tp, limit=DECISIONS)
    letters = store.letters(group, topic=tp.topic, partition=tp.partition, limit=LETTERS)
    kafka_topic = lag_of(request).topics.get(tp.topic)
    return show(
        request,
        "partition.html",
        group=group,
        tp=tp,
        topic=topic,
        one=one,
        owner=lag.owner,
        committed=(lag.kafka.committed or {}).get(tp),
        topic_id=kafka_topic.topic_id if kafka_topic is not None else None,
        metadata=None if metadata is None else str(metadata)[:_METADATA],
        metadata_left=0 if metadata is None else max(0, len(str(metadata)) - _METADATA),
        decisions=decisions[::-1],
        most_decisions=DECISIONS,
        letters=letters.letters,
        has_more_letters=letters.next is not None,
    )


def _asked(request: Request, lag: GroupLag) -> TopicPartition:
    topic, number = request.query_params.get("topic", ""), number_of(request)
    if number is not None and topic in lag.topics and number in lag.topics[topic].partitions:
        return TopicPartition(topic, number)
    raise HTTPException(404, "Neither the store nor Kafka has such a partition of the group's topics.")


ROUTES: Final = [Route("/partition", partition)]
