"""Exports the model of a run to other formats: converts it, scores it by the format's runtime, keeps it if equal."""
