"""Inputs of a script: placeholders in its arguments, files fetched from storage, data prepared once."""
