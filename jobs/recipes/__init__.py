"""Writes a recipe for given data and this machine; lists shipped recipes."""
