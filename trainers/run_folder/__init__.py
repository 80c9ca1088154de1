"""What a run leaves: layout, journal and fencing, checkpoints, status, logs."""
