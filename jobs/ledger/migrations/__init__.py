"""How a ledger's tables came to be, step by step; `env.py` and `versions/` are read by Alembic.

A new step is a file in `versions/` whose `down_revision` is the newest one's `revision`, and the same change in
jobs.ledger.tables; a test compares what the steps lead to with it. Steps only go up.
"""
