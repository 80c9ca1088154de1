"""What a job brings along: its working directory as a zip, packages, variables, and secrets by reference.

Builders are pure. Files are read in `tree` and `requirements`, and written in `package`, nowhere else.
"""
