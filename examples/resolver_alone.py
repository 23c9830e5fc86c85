"""The resolver alone: where would a job start now, and why? It only reads; no job is disturbed.

Spark's ``startingOffsets`` goes to standard output, the explanation, one line a partition, to standard error. Needs no
Spark: ``pip install '.[binary,kafka]'`` in the checkout. With OFFSETSTORE_URL the store has its say, without it the
answer goes by what Kafka has committed for the group. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop python examples/resolver_alone.py billing payments

The command line has the same: ``offsetstore resolve --group billing --topic payments --bootstrap-servers …``.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext

from offsetstore import Broker, OffsetStore, StartPolicy, resolve_starting_offsets

parser = argparse.ArgumentParser(description="Where would the group start?")
parser.add_argument("group")
parser.add_argument("topics", nargs="+")
arguments = parser.parse_args()

broker = Broker({"bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092")})
policy = StartPolicy(prefer="larger", auto_offset_reset="earliest")  # the defaults, spelt out
with OffsetStore.connect() if "OFFSETSTORE_URL" in os.environ else nullcontext() as store:
    start = resolve_starting_offsets(broker, group=arguments.group, topics=arguments.topics, store=store, policy=policy)

print(start.explain(), file=sys.stderr)
print(start.json())
