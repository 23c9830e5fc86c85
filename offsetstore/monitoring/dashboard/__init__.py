"""The dashboard: pages that a server renders, from the database and one snapshot of Kafka that all of them share.

`snapshots` reads both every ten seconds. `application` puts the pages of `views` together with what `security` asks of
each request; `rendering` fills in the templates. See docs/dashboard.md.
"""
