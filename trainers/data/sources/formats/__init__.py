"""Reads the rows of data in other formats than Rayscribe's manifests."""
