"""Decides which runs start next, as a pure function of the ledger's rows, clusters' capacity and queues' limits."""
