"""Keeps a program's checkpoints and files while it runs, and restores them when it is restarted."""
