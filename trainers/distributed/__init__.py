"""Ranks, signals and coordination between the processes of one attempt."""
