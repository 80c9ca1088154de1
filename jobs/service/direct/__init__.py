"""Runs without a queue: `rayscribe train`, `rayscribe launch`, and task.py by hand."""
