"""Preparing, training and scoring in processes of this machine, without Ray."""
