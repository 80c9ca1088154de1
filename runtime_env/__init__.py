"""Builds a job's environment: its working directory as a zip, packages, variables, and secrets by reference.

Builders are pure. Files are read only in `tree`, `package` and `build.freeze`, and written only in `package`.
"""
