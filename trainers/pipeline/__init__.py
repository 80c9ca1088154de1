"""Runs the steps of a run (prepare, train, evaluate, export) on Ray or without it."""
