"""A mix of sets in a config: what is wrong with it is named, and its paths are treated as all others are."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.config import advice
from tests.trainers.synthetic import content
from trainers.config.loader import build_config
from trainers.config.locations import make_paths_absolute, unresolved_paths
from trainers.config.parts.part import ConfigScope
from trainers.config.schema import TrainConfig

ONE: dict[str, Any] = {"name": "one", "train": "/one.csv"}
OTHER: dict[str, Any] = {"name": "other", "dataset": {"name": "/other"}}


def mix(*members: dict[str, Any], environment: dict[str, str] | None = None, **changes: Any) -> TrainConfig:
    data = {"mix": list(members), "validation": "/valid.csv", **changes}
    return build_config(content({"data": data}), origin="my.yaml", environment=environment or {})


def refused(*members: dict[str, Any], **changes: Any) -> str:
    return advice.refused(content({"data": {"mix": list(members), "validation": "/valid.csv", **changes}}))


def test_members_have_the_columns_of_the_data_part_unless_they_name_their_own() -> None:
    config = mix(ONE, {**OTHER, "text_column_name": "sentence"}, audio_column_name="audio", mix_temperature=3)
    assert config.data.source_name == "mix"
    one, other = (config.data.of_member(member) for member in config.data.mix)
    assert (one.train, one.source_name, one.text_column_name, one.audio_column_name) == (
        "/one.csv",
        "manifests",
        "text",
        "audio",
    )
    assert (other.source_name, other.text_column_name, other.mix_temperature) == ("dataset", "sentence", None)


@pytest.mark.parametrize(
    ("members", "changes", "message"),
    [
        ([ONE, {**OTHER, "wieght": 2}], {}, "data.mix.1.wieght: unknown key; did you mean data.mix.1.weight?"),
        ([{**ONE, "weight": 0}], {}, "data.mix.0.weight: Input should be greater than 0 (got 0)"),
        ([{**ONE, "weight": -1.5}], {}, "data.mix.0.weight: Input should be greater than 0 (got -1.5)"),
        ([ONE], {"mix_temperature": 0}, "data.mix_temperature: Input should be greater than 0 (got 0)"),
        (
            [{**ONE, "weight": 1}, OTHER],
            {},
            "data: mix has members without a weight (other): give all members a weight",
        ),
        ([ONE, {**OTHER, "name": "one"}], {}, "data: mix has two members named one: give each its own name"),
        ([{"train": "/one.csv"}], {}, "data.mix.0.name: missing"),
        ([{**ONE, "name": "a/b"}], {}, "data.mix.0.name: must begin with a letter or a digit"),
        ([{"name": "x"}], {}, "data.mix.0: x has no data: set exactly one of train, demo, dataset, source"),
        ([{**ONE, **OTHER}], {}, "data.mix.0: other has train and dataset: set exactly one of"),
        ([{**ONE, "train": "hdfs://x"}], {}, "data.mix.0.train: hdfs:// is not supported"),
        ([{**ONE, "train": "kaldi:"}], {}, "data.mix.0.train: kaldi:: kaldi: must be followed by a path"),
        ([ONE], {"train": "/two.csv"}, "data: names train and mix: keep one of"),
        (
            [{**ONE, "language": "sr"}],
            {"use_language_column": False},
            "use_language_column is false, but members of the mix have a language (one)",
        ),
        ([], {"mix_temperature": 2, "train": "/a.csv"}, "data: mix_temperature is 2.0, but there is no mix"),
        ([ONE], {"validation": None}, "data: validation is missing, which selects the best model"),
        (
            [ONE, {**OTHER, "dataset": {"name": "/other", "validation_split": None}}],
            {"validation": None},
            "data: validation is missing",
        ),
        (
            [],
            {"dataset": {"name": "/other", "validation_split": None}, "validation": None},
            "data: dataset.validation_split is null",
        ),
    ],
)
def test_what_is_wrong_is_named(members: list[dict[str, Any]], changes: dict[str, Any], message: str) -> None:
    assert message in refused(*members, **changes)


def test_a_member_may_have_the_validation_set() -> None:
    assert mix({**ONE, "validation": "/v.csv"}, validation=None).data.mix[0].validation == "/v.csv"
    assert mix(ONE, OTHER, validation=None).data.mix[1].has_validation


def test_paths_of_members_name_variables_home_and_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    members = [{**ONE, "train": "kaldi:${CORPUS}/train"}, {"name": "b", "train": "b.csv", "test": "~/t.csv"}]
    config = mix(*members, environment={"CORPUS": "/corpus"})
    assert [member.train for member in config.data.mix] == ["kaldi:/corpus/train", "b.csv"]
    assert config.data.mix[1].test == "/home/me/t.csv"
    absolute = make_paths_absolute(config, tmp_path)
    assert [member.train for member in absolute.data.mix] == ["kaldi:/corpus/train", str(tmp_path / "b.csv")]
    assert "data.mix.0.train: kaldi:${CORPUS}/train names the variable CORPUS, which is not set" in refused(*members)


def test_variables_that_a_verb_does_not_open_may_be_unset() -> None:
    changes = {"data": {"mix": [{**ONE, "train": "${CORPUS}/train.csv", "test": "/test.csv"}], "validation": "/v.csv"}}
    scope = ConfigScope.for_scoring("test")
    config = build_config(content(changes), origin="my.yaml", environment={}, scope=scope)
    assert config.data.mix[0].train == "${CORPUS}/train.csv"


def test_a_submitted_mix_names_what_the_nodes_would_not_find() -> None:
    config = mix({**ONE, "train": "~nobody-here/train.csv"})
    assert any(line.startswith("data.mix.0.train: ~nobody-here/train.csv") for line in unresolved_paths(config, ()))
