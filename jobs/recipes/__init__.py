"""Composes a recipe for given data and this machine."""
