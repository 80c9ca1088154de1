"""The `rayscribe` command. It does not import torch; the training code is imported when a command needs it."""

from jobs.cli.app import main

__all__ = ["main"]
