"""Runs that keep no files: of every stage, and of learning rates."""
