"""How a recipe becomes a config: its file, overrides, variables and paths."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from tests.trainers.synthetic import config, content
from trainers.config.loader import build_config, read_yaml, shipped, to_yaml
from trainers.config.locations import expand_home, make_paths_absolute, refuse_relative_storage
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.data_location import path_in
from trainers.config.parts.part import Part
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_absolute
from trainers.errors import ConfigError

SPECS = sorted((Path(__file__).parents[3] / "jobs" / "specs").glob("*.yaml"))


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "path", "value"),
        [
            ("training.max_steps=200", ("training", "max_steps"), 200),
            ("run.name=a=b", ("run", "name"), "a=b"),
            ("run.name=null", ("run", "name"), None),
            ("run.name=", ("run", "name"), None),
            ("training.report_to=[a, b]", ("training", "report_to"), ["a", "b"]),
            ("scaling.resources_per_worker={CPU: 2}", ("scaling", "resources_per_worker"), {"CPU": 2}),
            (" scaling.use_gpu =true", ("scaling", "use_gpu"), True),
            ("training.learning_rate=1e-5", ("training", "learning_rate"), "1e-5"),
            ("data.train=s3://bucket/a b.csv", ("data", "train"), "s3://bucket/a b.csv"),
        ],
    )
    def test_a_value_is_yaml(self, text: str, path: tuple[str, ...], value: Any) -> None:
        assert parse_override(text) == (path, value)

    @pytest.mark.parametrize("text", ["training.max_steps", "=3", " = 3", "run.name=[a", "run.name={a: }}"])
    def test_what_is_no_override_is_refused_with_itself(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_override(text)
        assert f"--set {text}" in str(caught.value)

    def test_missing_levels_are_made_and_the_original_stays(self) -> None:
        original: dict[str, Any] = {"run": {"seed": 1}, "training": None}
        changed = apply_overrides(original, [(("run", "name"), "x"), (("training", "max_steps"), 1), (("job", "a"), 2)])
        assert changed == {"run": {"seed": 1, "name": "x"}, "training": {"max_steps": 1}, "job": {"a": 2}}
        assert original == {"run": {"seed": 1}, "training": None}

    def test_the_last_of_equal_overrides_holds(self) -> None:
        assert apply_overrides({}, [(("a",), 1), (("a",), 2)]) == {"a": 2}


class TestPaths:
    def test_variables_in_paths_are_filled_in(self) -> None:
        built = build_config(
            content({"data.train": "${ROOT}/${SET}/train.csv", "run.storage_path": "s3://${BUCKET}/runs"}),
            origin="x",
            environment={"ROOT": "/speech", "SET": "sr", "BUCKET": "b"},
        )
        assert built.data.train == "/speech/sr/train.csv"
        assert built.run.storage_path == "s3://b/runs"

    def test_without_an_environment_the_process_s_own_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAYSCRIBE_TEST_ROOT", "/here")
        assert (
            build_config(content({"data.train": "${RAYSCRIBE_TEST_ROOT}/a.csv"}), origin="x").data.train
            == "/here/a.csv"
        )

    def test_a_home_folder_is_filled_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        assert config({"run.storage_path": "~/runs"}).run.storage_path == "/home/someone/runs"

    def test_relative_paths_count_from_the_base_and_urls_stay(self, tmp_path: Path) -> None:
        (tmp_path / "weights").mkdir()
        built = config(
            {
                "data.train": "a/train.csv",
                "data.validation": "../valid.csv",
                "data.test": "s3://bucket/x//test.csv",
                "run.storage_path": "s3://bucket/runs",
                "data.cache_dir": "cache",
                "model.init": "pretrained",
                "model.name_or_path": "weights",
            }
        )
        absolute = make_paths_absolute(built, tmp_path)
        assert absolute.data.train == str(tmp_path / "a" / "train.csv")
        assert absolute.data.validation == str(tmp_path.parent / "valid.csv")
        assert absolute.data.test == "s3://bucket/x//test.csv"
        assert absolute.run.storage_path == "s3://bucket/runs"
        assert absolute.data.cache_dir == str(tmp_path / "cache")
        assert absolute.model.name_or_path == str(tmp_path / "weights")
        assert built.data.train == "a/train.csv"

    def test_a_hub_id_is_no_path(self, tmp_path: Path) -> None:
        built = config({"model.init": "pretrained", "model.name_or_path": "openai/whisper-tiny"})
        assert make_paths_absolute(built, tmp_path).model.name_or_path == "openai/whisper-tiny"

    @pytest.mark.parametrize("field", ["run.storage_path", "data.cache_dir"])
    def test_inside_a_job_a_relative_place_to_write_is_refused(self, field: str) -> None:
        with pytest.raises(ConfigError) as caught:
            refuse_relative_storage(config({field: "runs"}))
        assert f"{field} is runs, a relative path inside a Ray job" in str(caught.value)
        assert f"--set {field}=" in str(caught.value)

    @pytest.mark.parametrize("path", ["/shared/runs", "s3://bucket/runs", None])
    def test_inside_a_job_an_absolute_place_to_write_is_taken(self, path: str | None) -> None:
        refuse_relative_storage(config({"run.storage_path": path}))

    @pytest.mark.parametrize(("path", "expected"), [("/a", True), ("s3://b", True), ("a/b", False), ("./a", False)])
    def test_what_means_the_same_on_every_node_is_absolute(self, path: str, expected: bool) -> None:
        assert is_absolute(path) is expected


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nowhere.yaml: no such file; name a recipe"):
            read_yaml(tmp_path / "nowhere.yaml")

    @pytest.mark.parametrize(
        ("path", "meant"),
        [
            ("micro", "whisper_micro"),
            ("whisper_micr.yaml", "whisper_micro"),
            ("nofile.yaml", None),
            ("dir/nofile", None),
        ],
    )
    def test_a_misspelled_name_is_told_from_a_file_of_one_s_own(self, path: str, meant: str | None) -> None:
        with pytest.raises(ConfigError) as caught:
            read_yaml(Path(path))
        assert ("did you mean" in str(caught.value)) == (meant is not None) and (meant or "") in str(caught.value)

    @pytest.mark.parametrize("name", ["my speech.csv", "my speech.TSV", "my speech.jsonl"])
    def test_speech_in_place_of_a_recipe_is_told_what_makes_one(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        with pytest.raises(ConfigError, match=r"no such file; name a recipe"):
            read_yaml(path)
        path.write_text("path,text\na.wav,one\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"a table, not a recipe: `rayscribe init '{path}'` writes a recipe"):
            read_yaml(path)
        with pytest.raises(ConfigError, match=rf"a folder; name the recipe in it, .* `rayscribe init {tmp_path}`"):
            read_yaml(tmp_path)

    def test_a_shipped_recipe_is_found_from_any_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        path = Path("jobs/specs/whisper_micro.yaml")
        assert read_yaml(path) == read_yaml(SPECS[0].parent / path.name)
        for other in ("jobs/specs/../model.py", "jobs/specs/none.yaml", "jobs/model.py"):
            assert shipped(Path(other)) == Path(other)
        path.parent.mkdir(parents=True)
        path.write_text("run: {name: own}")
        assert read_yaml(path) == {"run": {"name": "own"}}

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"a: [", "cannot be read as YAML"),
            (b"\xff\xfe\x00", "cannot be read as YAML"),
            (b"- a", "contains a list, not the keys"),
            (b"", "contains nothing, not the keys"),
            (b"text", "contains a single value, not the keys"),
        ],
    )
    def test_a_file_that_is_no_mapping_is_named(self, tmp_path: Path, data: bytes, problem: str) -> None:
        (tmp_path / "my.yaml").write_bytes(data)
        with pytest.raises(ConfigError, match=rf"my\.yaml: {problem}"):
            read_yaml(tmp_path / "my.yaml")

    def test_a_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="a folder; name the recipe in it"):
            read_yaml(tmp_path)

    def test_a_config_survives_its_own_yaml(self) -> None:
        original = config({"run.name": "x", "job.note": "здраво"})
        assert build_config(yaml.safe_load(to_yaml(original)), origin="x") == original

    def test_a_config_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            config().run.seed = 3  # type: ignore[misc]

    @pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
    def test_each_recipe_is_valid(self, path: Path) -> None:
        names = re.findall(r"\$\{(\w+)\}", path.read_text())
        built = build_config(read_yaml(path), origin=path.name, environment=dict.fromkeys(names, "/data"))
        assert is_absolute(path_in(built.data.train or "/"))

    def test_there_are_recipes(self) -> None:
        assert SPECS


def fields(part: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of the config, by its dotted name."""
    for name, field in part.model_fields.items():
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        parts = [kind for kind in inner if issubclass(kind, Part)]
        if not parts or field.description is not None:
            yield f"{prefix}{name}", field
        for kind in parts:
            yield from fields(kind, f"{prefix}{name}.")


@pytest.mark.parametrize(("name", "field"), list(fields(TrainConfig)), ids=[name for name, _ in fields(TrainConfig)])
def test_every_field_says_what_it_means(name: str, field: Any) -> None:
    assert field.description is not None
    assert field.description.rstrip().endswith((".", ")")), name
    if type(None) in get_args(field.annotation) and field.default is None and "." in name:
        assert "null:" in field.description, name


def test_the_home_of_an_unknown_user_stays_as_it_is() -> None:
    content = {"data": {"train": "~nobody-of-this-name/train.csv", "validation": "~/valid.csv"}}
    expanded = expand_home(content)["data"]
    assert expanded["train"] == "~nobody-of-this-name/train.csv"
    assert expanded["validation"] == str(Path("~/valid.csv").expanduser())
