"""Recordings in tar archives, which are read where they are and never unpacked."""
