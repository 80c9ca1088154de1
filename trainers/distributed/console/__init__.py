"""Shows what a command does while it runs, as events that are rendered for a terminal, a log or a program.

Imports only the standard library, so that the first line is printed before anything slow is imported.
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
