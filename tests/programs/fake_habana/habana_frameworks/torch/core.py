"""The part that programs call after each step."""


def mark_step() -> None:
    """Executes what lazy mode has gathered."""
