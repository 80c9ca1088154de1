"""Reads recordings in tar archives, which are never unpacked."""
