"""Recordings in tar archives, which are read in place and never unpacked."""
