"""The ready files are what their specs render to, and valid for the program that reads them."""

import os
import re
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.command_runner import _with_environment_variables
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster_configs.providers.local import START_FOLDER
from cluster_configs.rendering.cluster_spec import load_cluster_spec
from cluster_configs.rendering.render import RENDERERS, render
from cluster_configs.rendering.targets import KubernetesKind, Target
from tests.test_architecture import ROOT
from trainers.config.loader import build_config, read_yaml
from trainers.config.overrides import apply_overrides, parse_override
from trainers.errors import ConfigError

FOLDER = ROOT / "cluster_configs"
# Ready file: its spec, target and kind.
READY: dict[str, tuple[str, Target, KubernetesKind | None]] = {
    "local.yaml": ("local", Target.RAY_UP, None),
    "aws.yaml": ("aws", Target.RAY_UP, None),
    "gcp.yaml": ("gcp", Target.RAY_UP, None),
    "gaudi.yaml": ("gaudi", Target.RAY_UP, None),
    "kuberay/raycluster.yaml": ("kuberay", Target.KUBERAY, KubernetesKind.RAYCLUSTER),
    "kuberay/rayjob.yaml": ("kuberay", Target.KUBERAY, KubernetesKind.RAYJOB),
    "slurm.sbatch": ("slurm", Target.SLURM, None),
    "sge.qsub": ("sge", Target.SGE, None),
}
RAY_UP = [name for name, (_, target, _) in READY.items() if target == Target.RAY_UP]


def rendered(name: str, *overrides: str) -> str:
    spec, target, kind = READY[name]
    return render(load_cluster_spec(FOLDER / "specs" / f"{spec}.yaml", overrides), target, kind)


@pytest.mark.parametrize("name", READY)
def test_a_ready_file_is_what_its_spec_renders_to(name: str) -> None:
    path, text = FOLDER / name, rendered(name)
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_spec_and_every_target_has_a_ready_file() -> None:
    assert {spec for spec, _, _ in READY.values()} == {path.stem for path in (FOLDER / "specs").iterdir()}
    assert {(target, kind) for _, target, kind in READY.values()} == {*RENDERERS}


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_accepts_the_file(name: str) -> None:
    # What `ray up` does first: Ray's own JSON schema, and the provider's checks.
    validate_config(prepare_config(yaml.safe_load((FOLDER / name).read_text())))


def lines_of(name: str) -> list[str]:
    return (FOLDER / name).read_text().splitlines()


@pytest.mark.parametrize("name", READY)
def test_a_file_reads_well(name: str) -> None:
    prose = [line for line in lines_of(name) if not line.startswith("#  ")]
    assert [line for line in prose if len(line) > 120] == []
    head = [line for line in lines_of(name)[:8] if line.startswith("#   ")]
    assert len(head) >= 2, "the commands that use the file"


@pytest.mark.parametrize("name", RAY_UP)
def test_every_node_starts_ray_with_the_token_and_the_dashboard_on_loopback(name: str) -> None:
    config = yaml.safe_load((FOLDER / name).read_text())
    assert config["file_mounts"]["~/.ray/auth_token"] == f"~/.rayscribe/clusters/{config['cluster_name']}.token"
    for role in ("head", "worker"):
        start = config[f"{role}_start_ray_commands"][-1]
        variables, options = start.split("ray start")
        assert "export RAY_AUTH_MODE=token RAY_TRAIN_ENABLE_STATE_TRACKING=1" in variables
        assert "--metrics-export-port=8090" in options
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", RAY_UP)
def test_every_port_that_ray_listens_on_is_named(name: str) -> None:
    lines = lines_of(name)
    end = next(number for number, line in enumerate(lines) if line.startswith("worker_start_ray_commands"))
    said = set(re.findall(r"[\d-]{4,}", " ".join(takewhile(lambda line: line.startswith("#"), reversed(lines[:end])))))
    assert said == {"6379", "8076-8079", "8090", "10001", "10002-19999", "44217", "44227", "52365"}


def test_the_image_says_where_the_token_is_mounted() -> None:
    # Ray takes HOME from the image's own variables, and /root where it has none (DockerCommandRunner.run_init).
    user, home = "USER 1000", "ENV HOME=/home/ray"
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert lines.index(home) < lines.index(user)


def test_own_hosts_may_have_other_addresses_and_need_no_container() -> None:
    text = rendered("local.yaml", "ray_up.head_ip=10.9.0.1", "ray_up.worker_ips=[10.9.0.2]", "ray_up.private_key=~/k")
    config = yaml.safe_load(text)
    assert config["provider"] == {"type": "local", "head_ip": "10.9.0.1", "worker_ips": ["10.9.0.2"]}
    assert config["auth"] == {"ssh_user": "ubuntu", "ssh_private_key": "~/k"}
    assert "docker" not in config
    assert "--node-ip-address=10.9.0.1" in config["head_start_ray_commands"][-1]


def test_the_head_of_a_cloud_is_on_demand_and_spot_nodes_say_so_and_are_watched() -> None:
    for name in ("aws.yaml", "gcp.yaml"):
        config = yaml.safe_load((FOLDER / name).read_text())
        types: dict[str, Any] = config["available_node_types"]
        spot = {pool for pool, node in types.items() if "spot" in str(node["node_config"]).lower()}
        assert spot == {"spot"}
        assert types["spot"]["labels"]["ray.io/market-type"] == "spot"
        assert config["head_node_type"] == "head"
        assert types["head"]["resources"] == {"CPU": 0}
        assert f"preemption_agent --provider {name.removesuffix('.yaml')}" in config["worker_start_ray_commands"][-1]
    assert "preemption_agent" not in Path(FOLDER / "local.yaml").read_text()


def test_variables_modules_and_secrets_reach_every_command(tmp_path: Path) -> None:
    config = yaml.safe_load(
        rendered(
            "local.yaml",
            "modules=[cuda/12.8]",
            "exports={PATH: '/opt/x/bin:$PATH', HF_HOME: /shared/hf}",
            "secrets={HF_TOKEN: {file: /run/secrets/hf}, WANDB_API_KEY: {client_file: ~/keys/wandb}}",
            "setup=[pip install --no-deps -e /shared/rayscribe]",
        )
    )
    write, hook, own, check = config["setup_commands"]
    for line in (
        "module load cuda/12.8",
        'export PATH="/opt/x/bin:$PATH"',
        'export HF_TOKEN="$(cat /run/secrets/hf)"',
        'export WANDB_API_KEY="$(cat ~/.rayscribe.secrets/WANDB_API_KEY)"',
    ):
        assert f"'{line}'" in write
    assert config["file_mounts"]["~/.rayscribe.secrets/WANDB_API_KEY"] == "~/keys/wandb"
    assert "~/.bashrc" in hook
    assert own == "pip install --no-deps -e /shared/rayscribe"
    assert check.startswith("python -c")


def test_on_gaudi_hosts_a_recipe_is_submitted_as_it_can_train_there() -> None:
    comments = " ".join(line.strip("# ") for line in rendered("gaudi.yaml").splitlines() if line.startswith("#"))
    assert "Scripts use them (docs/accelerators.md), recipes the CPUs." in comments
    (command,) = re.findall(r"rayscribe submit (\S+) .*? (--set scaling.*)", comments)
    given = re.findall(r"--set (scaling\S+)", command[1])
    recipe = apply_overrides(read_yaml(ROOT / command[0]), [parse_override(text) for text in given])
    places = {"BUCKET_URI": "/runs", "SPEECH": "/speech"}
    assert build_config(recipe, origin="x", environment=places).scaling.worker_resources["GPU"] == 0


@pytest.mark.parametrize("file", ["/run/x;id>intruder;#", "/run/`id>intruder`"])
def test_the_path_of_a_secret_is_no_command(file: str, tmp_path: Path) -> None:
    write, *_ = yaml.safe_load(rendered("local.yaml", f"secrets={{A: {{file: '{file}'}}}}"))["setup_commands"]
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for command in (write, ". ~/.rayscribe.env"):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=home, check=True)
    assert [path.name for path in tmp_path.iterdir()] == [".rayscribe.env"]


@pytest.mark.parametrize(
    ("name", "override", "says"),
    [
        ("local.yaml", "secrets={A: {env: A}}", "secrets.A: `ray up` copies neither variables"),
        ("local.yaml", "secrets={A: {kubernetes: a}}", "secrets.A: `ray up` copies neither variables"),
        ("aws.yaml", "secrets={A: {file: /run/secrets/a}}", "secrets.A.file: /run/secrets/a is not in the container"),
        ("gaudi.yaml", "ray_up.run_options=[]", "storage: /shared/rayscribe is not in the container"),
    ],
)
def test_what_no_node_would_find_is_refused(name: str, override: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        rendered(name, override)
    assert says in str(error.value)


@pytest.mark.parametrize("option", ["-v /run/secrets:/run/secrets:ro", "--mount=type=bind,source=/a,target=/run"])
def test_a_container_may_mount_the_file_of_a_secret(option: str) -> None:
    secret = "secrets={A: {file: /run/secrets/a}}"
    assert "$(cat /run/secrets/a)" in rendered("aws.yaml", secret, f"ray_up.run_options=['{option}']")


def test_the_head_of_own_hosts_has_the_key_to_the_workers() -> None:
    # Ray copies it there where the file names it (commands.py: ray_bootstrap_key.pem), else nothing.
    for name in ("local.yaml", "gaudi.yaml"):
        assert yaml.safe_load((FOLDER / name).read_text())["auth"]["ssh_private_key"] == "~/.ssh/id_ed25519"


def test_machine_images_have_a_driver_for_the_cuda_of_the_images_torch() -> None:
    # CUDA 13, of PyPI's torch, asks for 580. Of an AMI's number nothing can be said.
    file = (FOLDER / "gcp.yaml").read_text()
    assert {int(number) for number in re.findall(r"-nvidia-(\d+)", file)} == {580}
    assert "latest_dlami" not in (FOLDER / "aws.yaml").read_text()


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
@pytest.mark.parametrize(
    ("ray_starts", "labels", "agents"),
    [
        (True, {"pool": "spot", "ray.io/market-type": "spot"}, 1),
        (True, {"pool": "spot", "ray.io/market-type": "on-demand"}, 0),
        (True, {"pool": "x", "ray.io/market-type": "on-demand", "a": "spot"}, 0),
        (False, {"pool": "spot", "ray.io/market-type": "spot"}, 0),
    ],
    ids=["spot", "pool-named-spot", "label-spot", "ray-fails"],
)
def test_only_spot_nodes_get_an_agent_and_a_failed_start_is_seen(
    name: str, ray_starts: bool, labels: dict[str, str], agents: int, tmp_path: Path
) -> None:
    start = yaml.safe_load((FOLDER / name).read_text())["worker_start_ray_commands"][-1]
    for program, code in {"ray": 0 if ray_starts else 3, "ulimit": 0}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / program).chmod(0o755)
    # What follows `&` would be lost to the test: it is run in the foreground.
    foreground = re.sub(r"nohup .*& esac", f"echo agent >> {tmp_path}/agents;; esac", start)
    assert foreground != start
    command = _with_environment_variables(foreground, {"RAY_OVERRIDE_LABELS": labels})
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", f"ulimit() {{ :; }}; {command}"], env=environment, check=False)
    assert (ended.returncode == 0) == ray_starts
    found = tmp_path / "agents"
    assert (len(found.read_text().splitlines()) if found.exists() else 0) == agents


@pytest.mark.integration
def test_a_host_starts_ray_in_the_background_once_at_a_time_and_shows_how_it_failed_before(tmp_path: Path) -> None:
    calls, go_on = tmp_path / "calls", tmp_path / "go_on"
    os.mkfifo(go_on)
    folder = tmp_path / "ray_start"
    (tmp_path / "ray").write_text(
        f'#!/bin/sh\necho "$1" >> {calls}\n[ "$1" = stop ] && exit\nread line < {go_on}; echo "$line"\n'
    )
    (tmp_path / "ray").chmod(0o755)
    (command,) = yaml.safe_load((FOLDER / "local.yaml").read_text())["worker_start_ray_commands"]
    command = command.replace(START_FOLDER, str(folder))

    def start(then: str = "") -> str:
        # As Ray's command runner has it.
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RAY_HEAD_IP": "10.0.0.1"}
        line = ["bash", "-c", f"ulimit() {{ :; }}; true && ({command} {then})"]
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    def wait_until_free() -> None:
        subprocess.run(["flock", folder / "lock", "true"], check=True, timeout=60)

    assert start() == ""
    with go_on.open("w") as fifo:
        # The second finds the first at work, and has ended before the first may.
        assert start(then="wait") == ""
        fifo.write("no such head\n")
    wait_until_free()
    assert start() == "no such head\n"
    go_on.write_text("started\n")
    wait_until_free()
    assert calls.read_text().split() == ["stop", "start"] * 2
