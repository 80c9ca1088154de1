"""Converts a recipe to a run request, its package, and the request to Ray. Pure."""
