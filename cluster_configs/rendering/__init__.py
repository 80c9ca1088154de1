"""Renders a ClusterSpec as the file of one target. Pure."""
