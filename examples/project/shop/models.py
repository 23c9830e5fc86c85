"""The shop's own tables; offsetstore's come along with the migrations, and need no models."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, DateTime, Numeric
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What the migrations are generated from."""


class Payment(Base):
    """One record of the topic ``payments``."""

    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    payer: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    paid_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Refund(Base):
    """One record of the topic ``refunds``."""

    __tablename__ = "refunds"

    id: Mapped[int] = mapped_column(primary_key=True)
    payer: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(Numeric(12, 2), CheckConstraint("amount > 0"))
