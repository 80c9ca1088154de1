"""`rayscribe cluster validate`: detects a cluster file's kind, checks its schema, and rules with names and fixes.

Pure but for `schema_rules`, which reads Ray's schema and starts `bash -n`.
"""
