"""Pages from templates: one file each, that needs no network and runs no script. Others' texts in it are escaped."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
CSS = "report.css"


def environment_of(*folders: Path) -> Environment:
    """Templates of the folders, the first before the next, and of this package; what they insert is escaped."""
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
    """A template of this package with its values; all need `title`, `sections` and `version`, see layout.html.j2."""
    css = Markup((TEMPLATES / CSS).read_text(encoding="utf-8"))
    return environment_of().get_template(template).render(css=css, **values)


def percent(rate: float | None) -> str:
    """`12.30%`; of references without a unit it is undefined."""
    return "undefined" if rate is None else f"{rate:.2f}%"


def clock(at: str) -> str:
    """A time of a run folder, for people: `2026-11-26 07:25:39 UTC`."""
    return at.replace("T", " ").replace("+00:00", " UTC")
