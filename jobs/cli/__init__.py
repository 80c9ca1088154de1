"""The `rayscribe` command."""
