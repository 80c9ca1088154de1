"""The typed config: schema, loading, overrides, flags, secret references. Imports no torch."""
