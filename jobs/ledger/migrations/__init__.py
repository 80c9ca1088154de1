"""Migrations of the ledger's tables, for Alembic.

A new migration is a file here whose `down_revision` is the newest one's `revision`, and the same change in
jobs.ledger.tables; a test compares both. There are no downgrades.
"""
