"""Checks that find errors before a run is submitted; each message has the field, the value and the fix."""
