"""Runs unmodified torchrun programs on Ray workers."""
