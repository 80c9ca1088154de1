"""The pipeline's steps on a Ray cluster: preparing with Ray Data, training with Ray Train."""
