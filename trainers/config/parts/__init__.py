"""The parts of a config that users write."""
