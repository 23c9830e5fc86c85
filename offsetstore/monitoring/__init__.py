"""Metrics, liveness and the dashboard come here."""
