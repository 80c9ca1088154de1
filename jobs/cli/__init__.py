"""The `rayscribe` command. It loads no torch: what trains is loaded when it is asked for."""

from jobs.cli.app import main

__all__ = ["main"]
