"""Trackers that show all attempts of a run as one, and the feed that sends them metrics."""
