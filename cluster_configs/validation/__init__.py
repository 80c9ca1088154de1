"""`rayscribe cluster validate`: detects a cluster file's kind, and checks its schema and rules with names and fixes.

Pure, except for `schema_rules`, which reads Ray's schema and starts `bash -n`.
"""
