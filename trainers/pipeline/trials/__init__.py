"""Trials that keep no run: of every stage, and of learning rates."""
