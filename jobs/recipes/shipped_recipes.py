"""The recipes that are shipped: what each is, and what it needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.config.loader import read_yaml, shipped_recipes
from trainers.config.locations import path_values, variables_in


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe; `about` is the first line of its file, and `needs` what must be there next to it."""

    name: str
    about: str
    needs: tuple[str, ...]


def list_shipped() -> list[ShippedRecipe]:
    """The recipes that are shipped, by name."""
    found = []
    for name, path in shipped_recipes().items():
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        found.append(ShippedRecipe(name, first_line.removeprefix("# "), tuple(_needs(read_yaml(path)))))
    return found


def _needs(content: Mapping[str, Any]) -> Iterator[str]:
    scaling, data = content["scaling"], content["data"]
    workers = scaling["num_workers"]
    if scaling["use_gpu"]:
        yield "1 GPU" if workers == 1 else f"{workers} GPUs"
    else:
        yield "no GPU"
    paths = [value for _, _, value in path_values({"data": data, "run": content["run"]})]
    for variable in dict.fromkeys(name for path in paths for name in variables_in(path)):
        yield f"{variable}=…, a folder or URL"
    if "demo" in data:
        yield "the extra demo"
    from_hub = ["data"] * ("dataset" in data) + ["weights"] * (content["model"]["init"] == "pretrained")
    if from_hub:
        yield f"{' and '.join(from_hub)} from the Hub"
