"""A recipe for data and a machine that were looked at, and the recipes that are shipped."""
