"""Random changes of training clips."""
