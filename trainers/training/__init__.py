"""The training worker, which runs on each rank."""
