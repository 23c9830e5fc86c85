"""The migrations, at the top of the checkout and inside the wheel; `upgrade` is for an application's own deploy."""

from offsetstore.store.migrate import downgrade, upgrade

__all__ = ["downgrade", "upgrade"]
