"""The dashboard: pages that a server renders, from the database and one snapshot of Kafka that all of them share.

`snapshots` reads both every ten seconds. `serving` puts the pages of `views` together with what `security` asks of each
request; `context` fills in the templates, and `forms` reads decisions. See docs/dashboard.md.
"""
