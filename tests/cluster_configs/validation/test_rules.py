"""Every rule has a file that it alone finds, which the schemas of Ray and KubeRay accept; good files keep all."""

from pathlib import Path

import pytest

from cluster_configs.providers.known_providers import PROVIDERS
from cluster_configs.validation import node_rules
from cluster_configs.validation.cluster_file import FileKind
from cluster_configs.validation.validator import RULES, validate
from tests.test_architecture import ROOT

HERE = Path(__file__).parent
BROKEN = sorted((HERE / "broken").iterdir())
GOOD = sorted((HERE / "good").iterdir())
FOLDER = ROOT / "cluster_configs"
PATTERNS = ("*.yaml", "*.sbatch", "*.qsub", "kuberay/*.yaml", "specs/*.yaml")
SHIPPED = sorted(path for pattern in PATTERNS for path in FOLDER.glob(pattern))
NAMES = [rule.name for rule in RULES]
OF_PROVIDERS = {name: [rule.name for rule in one.rules] for name, one in PROVIDERS.items() if one.rules}
ALL_NAMES = {*NAMES, *(rule for names in OF_PROVIDERS.values() for rule in names)}
# An open dashboard is one in Kubernetes where another rule is broken, too.
WITH = {"dashboard-loopback-kuberay": {"network-policy"}, "dashboard-loopback-kuberay-token": {"token-authentication"}}


@pytest.fixture
def client_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions that the files name."""
    monkeypatch.setattr(node_rules, "CLIENT", {"ray": "2.60.0", "rayscribe": "0.1.0"})


def rule_of(path: Path) -> str:
    """`dashboard-loopback-space.yaml` breaks dashboard-loopback."""
    return max(
        (name for name in ALL_NAMES if path.stem == name or path.stem.startswith(f"{name}-")), key=len, default=""
    )


def test_every_rule_has_a_file_that_breaks_it_alone() -> None:
    assert {rule_of(path) for path in BROKEN if path.stem not in WITH} == ALL_NAMES
    assert {rule_of(path) for path in BROKEN} == ALL_NAMES
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.usefixtures("client_of_the_files")
@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
def test_a_broken_file_breaks_its_rule_and_no_other(path: Path) -> None:
    report = validate(path.read_bytes())
    assert {name for name, _ in report.broken} == {rule_of(path)} | WITH.get(path.stem, set())
    for _, violation in report.broken:
        assert violation.fix
        assert "swordfish" not in f"{violation}"


@pytest.mark.usefixtures("client_of_the_files")
@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_a_good_file_keeps_every_rule_of_its_kind(path: Path) -> None:
    report = validate(path.read_bytes())
    assert report.broken == ()
    general = [rule.name for rule in RULES if report.kind in rule.kinds]
    assert report.checked[: len(general)] == tuple(general)


@pytest.mark.usefixtures("client_of_the_files")
def test_rules_of_a_provider_are_checked_in_its_files_alone() -> None:
    for name, provider in {"own_hosts.yaml": "local", "cloud.yaml": "aws"}.items():
        checked = {*validate((HERE / "good" / name).read_bytes()).checked}
        assert checked >= {*OF_PROVIDERS[provider]}
        others = {rule for other, names in OF_PROVIDERS.items() if other != provider for rule in names}
        assert checked & (others - {*NAMES}) == set()


@pytest.mark.usefixtures("client_of_the_files")
def test_there_is_a_good_file_of_every_kind() -> None:
    assert {validate(path.read_bytes()).kind for path in GOOD} == set(FileKind)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
def test_shipped_files_keep_every_rule_on_the_machine_that_has_them(path: Path) -> None:
    assert validate(path.read_bytes()).broken == ()
