"""Pages from templates: one file each, that needs no network and runs no script. Others' texts in it are escaped."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, **values: Any) -> str:
    """A template of this package with its values; all need `title`, `sections` and `version`, see layout.html.j2."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code_point": ord, "clock": clock}
    css = Markup((TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(css=css, **values)


def clock(at: str) -> str:
    """A time of a run folder, for people: `2026-11-26 07:25:39 UTC`."""
    return at.replace("T", " ").replace("+00:00", " UTC")
