"""The endpoints, a file for each group."""
