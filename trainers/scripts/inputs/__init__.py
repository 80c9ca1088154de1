"""Inputs of a program: placeholders in its arguments, files that are fetched, data that is prepared once."""
