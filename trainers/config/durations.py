"""Durations as people read them. Imports nothing."""


def format_duration(seconds: float) -> str:
    """`4 s`, `3 min 20 s`, `2 h 05 min`."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
