"""Runs the pipeline on a Ray cluster: preparing with Ray Data, training with Ray Train."""
