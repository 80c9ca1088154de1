"""Golden files hold what is built; each must also be something that Ray takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.runtime_env import RuntimeEnv

from runtime_env.build import build_runtime_env, script_files, wrap_entrypoint
from runtime_env.config import RuntimeEnvPart
from trainers.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
PRIVATE = {
    "index_url": "https://${INDEX_USER}:${INDEX_PASSWORD}@packages.example/simple",
    "extra_index_urls": ["https://pypi.org/simple"],
}
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pip": {"pip": ["tiny-speech==1.2.3"]},
    "pip_private_index": {"pip": ["tiny-speech==1.2.3"], **PRIVATE},
    "pip_without_cache": {"pip": ["tiny-speech==1.2.3"], "cache": False, "setup_timeout_s": 60},
    "uv": {"uv": ["tiny-speech==1.2.3"]},
    "uv_private_index": {"uv": ["tiny-speech==1.2.3", "x @ https://${HOST}/x.tar.gz"], **PRIVATE},
    "uv_without_cache": {"uv": ["tiny-speech==1.2.3"], "cache": False},
    "variables_and_secrets": {
        "env_vars": {"OMP_NUM_THREADS": 4, "PYTHONUNBUFFERED": "0"},
        "secrets": {"WANDB_API_KEY": {"env": "TEAM_KEY"}, "HF_TOKEN": {"file": "/etc/hf/token"}},
    },
    "script": {"pip": ["tiny-speech==1.2.3"], "install": "script", **PRIVATE},
    "image": {"image_uri": "registry.example/rayscribe:1.0", "secrets": {"HF_TOKEN": {"env": "RAY_HF"}}},
}
ENTRYPOINT = "python task.py --config jobs/specs/whisper_micro.yaml"


def built(name: str, package: str = "/packages/abc.zip") -> dict[str, Any]:
    part = RuntimeEnvPart.model_validate(PARTS[name])
    runtime_env = build_runtime_env(part, package=package, stop_grace_s=120, setup_log="setup-sr-a1.log")
    return {"entrypoint": wrap_entrypoint(part, ENTRYPOINT), "runtime_env": runtime_env}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_built_is_what_it_was(name: str) -> None:
    golden = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert yaml.safe_dump(built(name), sort_keys=False, width=120) == golden


@pytest.mark.parametrize("name", PARTS)
def test_ray_takes_it_unchanged(name: str, tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    package.touch()
    runtime_env = built(name, str(package))["runtime_env"]
    taken = RuntimeEnv(**runtime_env).to_dict()
    assert runtime_env["env_vars"] == taken["env_vars"]
    for key in ("pip", "uv"):
        assert {**runtime_env.get(key, {})}.items() <= {**taken.get(key, {})}.items()
    assert runtime_env["config"].items() <= taken["config"].items()


def test_an_image_gets_no_files_since_ray_would_refuse_them() -> None:
    assert "working_dir" not in built("image")["runtime_env"]
    with pytest.raises(ValueError, match="image_uri"):
        RuntimeEnv(**built("image")["runtime_env"], working_dir="gcs://x.zip")


def test_each_attempt_may_have_variables_of_its_own() -> None:
    one, other = (
        build_runtime_env(RuntimeEnvPart(), package="p", stop_grace_s=1, environment={"RAYSCRIBE_SUBMISSION_ID": name})
        for name in ("run-a1", "run-a2")
    )
    assert one != other
    assert one["env_vars"]["RAYSCRIBE_SUBMISSION_ID"] == "run-a1"


def test_a_job_may_have_more_retries_of_its_own() -> None:
    part = RuntimeEnvPart.model_validate({"uv": ["tiny-speech"], "env_vars": {"UV_HTTP_RETRIES": "9"}})
    variables = build_runtime_env(part, package="p", stop_grace_s=1)["env_vars"]
    assert (variables["UV_HTTP_RETRIES"], variables["PIP_RETRIES"]) == ("9", "1")


@pytest.mark.parametrize("install", ["runtime_env", "script"])
def test_a_file_that_was_not_read_is_refused(install: str) -> None:
    part = RuntimeEnvPart.model_validate({"pip": "requirements.txt", "install": install})
    builders: list[Callable[[], object]] = [
        lambda: build_runtime_env(part, package="p", stop_grace_s=1),
        lambda: script_files(part),
    ]
    with pytest.raises(ConfigError, match=r"requirements\.txt was not read"):
        builders[install == "script"]()


def test_without_packages_there_is_no_script() -> None:
    part = RuntimeEnvPart.model_validate({"install": "script"})
    assert script_files(part) == {}
    assert wrap_entrypoint(part, ENTRYPOINT) == ENTRYPOINT
