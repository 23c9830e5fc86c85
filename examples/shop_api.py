"""A web application whose orders reach Kafka exactly once: FastAPI, an outbox and a relay.

One transaction has the order, its record in the outbox, and what is left in stock. A relay sends the record. Kafka may
be down meanwhile; the application does not even know its address. An order that is refused, or whose process is killed
before COMMIT, has no record. A client that got no answer posts the order again under the same id, and has it once.
Another order under that id is refused.

``pip install '.[binary,cli,kafka]' fastapi uvicorn 'sqlalchemy[asyncio]'`` in the checkout. Needs the tables::

    CREATE TABLE orders (id uuid PRIMARY KEY, item text NOT NULL, pieces int NOT NULL);
    CREATE TABLE stock (item text PRIMARY KEY, pieces int NOT NULL CHECK (pieces >= 0));

and before the first run, in the deploy, ``offsetstore migrate``. Run it in this directory with::

    DATABASE_URL=postgresql+psycopg://shop@localhost/shop uvicorn shop_api:app

and beside it, once for all processes of the application, the relay::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop offsetstore relay --bootstrap-servers localhost:9092
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Response
from pydantic import BaseModel, PositiveInt
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from offsetstore.outbox import OutboxRecord, put

TOPIC = "orders"
INSERT = text("INSERT INTO orders VALUES (:id, :item, :pieces) ON CONFLICT (id) DO NOTHING RETURNING id")
SELECT = text("SELECT id, item, pieces FROM orders WHERE id = :id")
TAKE = text("UPDATE stock SET pieces = pieces - :pieces WHERE item = :item AND pieces >= :pieces RETURNING pieces")

engine = create_async_engine(os.environ["DATABASE_URL"])
new_session = async_sessionmaker(engine)


class Order(BaseModel):
    """What a client posts. It chooses the id, so that it can repeat the call."""

    id: UUID
    item: str
    pieces: PositiveInt


async def session() -> AsyncGenerator[AsyncSession]:
    """Open a session for one request; what is not committed is rolled back."""
    async with new_session() as opened:
        yield opened


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Close the connections at the end."""
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: Order, session: Annotated[AsyncSession, Depends(session)], response: Response) -> Order:
    """Write the order, and its record in the same transaction."""
    row = order.model_dump()
    if (await session.execute(INSERT, row)).first() is None:
        stored = (await session.execute(SELECT, row)).mappings().one()
        if Order(**stored) != order:
            raise HTTPException(409, "another order has this id")
        response.status_code = 200  # an earlier call with this id was committed, and has its record
        return order
    record = OutboxRecord(
        TOPIC, str(order.id).encode(), json.dumps({"item": order.item, "pieces": order.pieces}).encode()
    )
    await session.run_sync(put, [record], source="shop")
    if (await session.execute(TAKE, row)).first() is None:
        raise HTTPException(409, "not enough in stock")  # order and record are rolled back
    await session.commit()
    return order
