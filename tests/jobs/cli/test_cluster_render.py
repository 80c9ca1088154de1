"""`rayscribe cluster render` prints a file, and says what it cannot do without a traceback."""

import pytest
import yaml

from jobs.cli.app import main
from tests.test_architecture import ROOT

SPECS = ROOT / "cluster_configs" / "specs"


def test_the_file_is_printed_with_what_was_overridden(capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(SPECS / "local.yaml")
    assert main(["cluster", "render", spec, "--target", "ray-up", "--set", "ray_up.head_ip=10.9.0.1"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["provider"]["head_ip"] == "10.9.0.1"
    assert printed.err == ""


def test_what_the_target_has_no_use_for_is_noted_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    mail = "mail={to: ana@example.org}"
    assert main(["cluster", "render", str(SPECS / "kuberay.yaml"), "--target", "kuberay", "--set", mail]) == 0
    printed = capsys.readouterr()
    assert [document["kind"] for document in yaml.safe_load_all(printed.out)][-1] == "RayCluster"
    assert printed.err == "note: mail is not used by kuberay: batch schedulers send mail\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.yaml", "--target", "ray-up"], "none.yaml: no such file; name a spec"),
        ([str(SPECS / "kuberay.yaml"), "--target", "ray-up"], "ray_up: missing"),
        ([str(SPECS / "local.yaml"), "--target", "kuberay"], "image: missing"),
        ([str(SPECS / "local.yaml"), "--target", "ray-up", "--kind", "rayjob"], "--kind rayjob: ray-up has no kinds"),
        (
            [str(SPECS / "local.yaml"), "--target", "ray-up", "--set", "pools.hosts.maxx=1"],
            "did you mean pools.hosts.max?",
        ),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "render", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert says in printed.err
