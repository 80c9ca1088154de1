"""Migrations of older ledgers' tables, for Alembic.

A new migration is a file here whose `down_revision` is the newest one's `revision`, and the same change in
jobs.ledger.tables, of which new ledgers are made. There are no downgrades.
"""
