"""What `rayscribe cluster validate` checks: a cluster file's kind, its schema, and rules with a name and a fix each.

Pure: no file is opened and no process started here but by what `installed.py` hands in.
"""
