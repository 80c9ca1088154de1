"""Migrations of older ledgers' tables, for Alembic.

A new migration is a file here whose `down_revision` is the `revision` of the newest, together with the same change in
jobs.ledger.tables, from which new ledgers are created. There are no downgrades.
"""
