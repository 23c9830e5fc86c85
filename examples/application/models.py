"""The application's own tables; offsetstore's are none of its business."""

from decimal import Decimal

from sqlalchemy import Numeric
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What the application's migrations are generated from."""


class Payment(Base):
    """One record of the topic ``payments``."""

    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    payer: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(Numeric(12, 2))
