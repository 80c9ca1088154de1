"""Decides which runs start next: a pure function of the ledger's rows, the clusters' capacity and queues' limits."""
