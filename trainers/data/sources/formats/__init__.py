"""Readers of data in other formats than Rayscribe's manifests: from their files to rows."""
