"""Checks that find errors before the cluster does; each names the field, the value and the fix."""
