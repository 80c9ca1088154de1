"""What a command shows while it runs: events, and how a terminal, a log and a program are given them.

Loads nothing but the standard library, so that the first line comes before anything slow is imported.
"""

from trainers.distributed.console.events import Event, ProgressCounter
from trainers.distributed.console.screen import is_main_process, listened, opened_for, opened_screen, print_line, show

__all__ = [
    "Event",
    "ProgressCounter",
    "is_main_process",
    "listened",
    "opened_for",
    "opened_screen",
    "print_line",
    "show",
]
