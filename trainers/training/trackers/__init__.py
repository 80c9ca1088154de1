"""Trackers that show one run for all its attempts: a file each, and what feeds them."""
