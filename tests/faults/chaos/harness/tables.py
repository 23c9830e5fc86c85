"""Where the job's results go, and the log that a trigger keeps of every move of a stored offset."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

DDL = """
CREATE TABLE landed (topic text, partition int, "offset" bigint, seq bigint NOT NULL, key text, amount bigint);
CREATE TABLE sums (key text PRIMARY KEY, records bigint NOT NULL, total numeric);

CREATE TABLE offset_moves (
    id bigint GENERATED ALWAYS AS IDENTITY, kind text, consumer_group text, topic text, partition int,
    from_offset bigint, to_offset bigint, epoch bigint, claim_id uuid, advanced boolean
);

CREATE FUNCTION log_offset_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO offset_moves (kind, consumer_group, topic, partition, to_offset, epoch, claim_id, advanced)
        VALUES (TG_OP, NEW.consumer_group, NEW.topic, NEW.partition, NEW.next_offset, NEW.epoch, NEW.claim_id, false);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO offset_moves (kind, consumer_group, topic, partition, from_offset, epoch, claim_id, advanced)
        VALUES (TG_OP, OLD.consumer_group, OLD.topic, OLD.partition, OLD.next_offset, OLD.epoch, OLD.claim_id, false);
    ELSIF NEW.next_offset <> OLD.next_offset OR NEW.transaction_id IS DISTINCT FROM OLD.transaction_id THEN
        INSERT INTO offset_moves (
            kind, consumer_group, topic, partition, from_offset, to_offset, epoch, claim_id, advanced
        )
        VALUES (
            TG_OP, NEW.consumer_group, NEW.topic, NEW.partition, OLD.next_offset, NEW.next_offset, NEW.epoch,
            NEW.claim_id, NEW.transaction_id IS DISTINCT FROM OLD.transaction_id
        );
    END IF;
    RETURN NULL;
END $$;
"""
"""``landed`` has no unique key, so that none hides a record that is there twice. ``sums`` is only ever added to."""

TRIGGER = """
CREATE TRIGGER log_offset_moves AFTER INSERT OR UPDATE OR DELETE ON kafka_partitions
    FOR EACH ROW EXECUTE FUNCTION log_offset_move()
"""
"""Apart, because it has to be made again where our tables were lost and made anew."""


def migrate(url: str, *steps: Callable[[Connection], object]) -> None:
    """Bring a database's tables to head, or do these steps."""
    engine = make_engine(url)
    with engine.begin() as connection:
        for step in steps or (upgrade,):
            step(connection)
    engine.dispose()
