"""Runs without a queue: started by `rayscribe train`, `rayscribe launch`, or task.py."""
