"""The tables of the first version; a new ledger gets those of jobs.ledger.tables at once."""

# Named after the version that brought it: a ledger of an unreleased commit is refused, not taken for this one.
revision = "0.1.0"
down_revision = None
