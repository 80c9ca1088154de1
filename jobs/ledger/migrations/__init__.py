"""Migrations of the ledger's tables; Alembic reads `env.py` and `versions/`.

A new migration is a file in `versions/` whose `down_revision` is the newest one's `revision`, and the same change in
jobs.ledger.tables; a test compares both. There are no downgrades.
"""
