"""Builds a job's environment: its working directory as a zip, packages, variables, and secrets by reference.

Builders are pure. Files are read only in `tree` and `requirements`, and written only in `package`.
"""
