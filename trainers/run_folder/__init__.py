"""The output of a run: layout, journal and fencing, checkpoints, status, logs."""
