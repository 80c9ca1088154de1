"""Tones to learn from, and repositories whose task.py trains on them for real."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.integration.forked_process import REPOSITORY
from tests.trainers.synthetic import content, write_corpus

WORDS = ("red", "green", "blue", "left right", "up and down", "stop", "go on then", "one two three four")
SPLITS = (("train", 48), ("validation", 6), ("test", 6))
STEPS = 40


def write_tones(folder: Path) -> Path:
    """Writes train.csv, validation.csv and test.csv of tones with made-up transcripts; gives the folder."""
    for name, count in SPLITS:
        texts = [WORDS[(number + len(name)) % len(WORDS)] for number in range(count)]
        durations_s = [0.3 + 0.07 * (number * 7 % 11) for number in range(count)]
        write_corpus(folder, texts, durations_s=durations_s, name=name)
    return folder


def write_recipe(path: Path, tones: Path, changes: Mapping[str, Any]) -> Path:
    """Writes the recipe of a small model with dropout, by which a repeated step that differs shows; gives its path.

    Args:
        path: Where; what is prepared is kept next to it.
        tones: What is learned from.
        changes: By dotted names, `training.save_steps` among them, at which it is scored, too.
    """
    recipe: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split, _ in SPLITS},
        "data.cache_dir": str(path.parent / "prepared"),
        "model.dropout": 0.2,
        "training.eval_steps": changes["training.save_steps"],
        "training.learning_rate": 1e-3,
        "decode.max_length": 8,
        **changes,
    }
    path.write_text(yaml.safe_dump(content(recipe)))
    return path


def write_training_tree(tree: Path, tones: Path, prepared: str, **changes: Any) -> Path:
    """Makes a repository with a recipe.yaml of two workers and dropout; gives its folder.

    Args:
        tree: Where; it is made.
        tones: What is learned from.
        prepared: Where prepared sets are kept.
        changes: Of the recipe, by dotted names with a double underscore for each dot.
    """
    tree.mkdir()
    for name in ("trainers", "runtime_env"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "task.py", tree)
    recipe: dict[str, Any] = {
        "run.max_failures": 0,
        "data": {split: str(tones / f"{split}.csv") for split, _ in SPLITS},
        "data.cache_dir": prepared,
        "model.dropout": 0.1,
        "training.max_steps": STEPS,
        "training.save_steps": 10,
        "training.eval_steps": 10,
        "training.logging_steps": 1,
        "decode.max_length": 8,
        "scaling.num_workers": 2,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    (tree / "recipe.yaml").write_text(yaml.safe_dump(content(recipe)))
    return tree
