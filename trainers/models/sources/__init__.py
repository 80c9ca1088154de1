"""Resolves the sources of models in a recipe to local folders that transformers opens."""
