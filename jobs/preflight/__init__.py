"""Checks that find an error before the cluster does; each names the thing, the value and the fix."""
