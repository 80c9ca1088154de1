"""Exports a run's model to other formats: converts it, scores it with each runtime, and keeps it if scores agree."""
