"""Readers of data in other formats than our manifests: from their files to rows."""
