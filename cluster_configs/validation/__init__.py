"""`rayscribe cluster validate`: detects a cluster file's kind, checks its schema, and rules with names and fixes.

Pure: opens no file and starts no process, except through what `installed.py` returns.
"""
