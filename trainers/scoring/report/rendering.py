"""Renders pages from templates, as single files without network access or scripts. Inserted texts are escaped."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
CSS = "report.css"


@cache
def environment_of(*folders: Path) -> Environment:
    """Returns the environment, one per process, with the templates of the folders, in this order, and this package.

    The environment escapes values.
    """
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code_point": ord, "clock": clock}
    return environment


def rendered(template: str, **values: Any) -> str:
    """Renders a template of this package; all need `title`, `sections` and `version`, see layout.html.j2."""
    css = Markup((TEMPLATES / CSS).read_text(encoding="utf-8"))
    return environment_of().get_template(template).render(css=css, **values)


def percent(rate: float | None) -> str:
    """Returns a rate as `12.30%`, or `undefined` for None."""
    return "undefined" if rate is None else f"{rate:.2f}%"


def clock(at: str) -> str:
    """Formats a time of a run folder for people: `2026-11-26 07:25:39 UTC`."""
    return at.replace("T", " ").replace("+00:00", " UTC")
