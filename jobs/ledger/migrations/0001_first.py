"""The tables of the first version; a new ledger gets the tables in jobs.ledger.tables directly."""

# Named after its version, so that ledgers of unreleased commits, with other revisions, are refused.
revision = "0.1.0"
down_revision = None
