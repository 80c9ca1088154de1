"""Unmodified torchrun programs on Ray workers."""
