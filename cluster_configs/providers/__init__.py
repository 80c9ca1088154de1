"""Providers of nodes, each with its part of a spec, its rendering, its rules and its preemption notices."""
