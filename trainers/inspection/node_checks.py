"""Checks on every node of the cluster: storage that all share, data that all read, torch that fits each.

Ray tasks that reserve nothing, so that they run on a busy cluster too.
"""

import json
import os
import platform
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.parts.data_location import path_in
from trainers.config.parts.scaling_part import AcceleratorName, ScalingPart
from trainers.config.secrets import REFERENCES, resolve_secrets
from trainers.config.storage_location import StorageOptions, is_absolute
from trainers.data.sources.archives.source_files import file_of
from trainers.data.sources.data_source import SPLITS
from trainers.data.sources.located_files import read_start
from trainers.distributed.hardware import devices_here, judge
from trainers.distributed.ray_connection import connected, node_names
from trainers.errors import ConfigError, ResourceError, StorageError
from trainers.findings import Check, Finding, Level, named, ok, problem, skipped, warning
from trainers.inspection.hardware_checks import build_here
from trainers.inspection.subject import Subject
from trainers.storage import open_storage

MAX_NODES = 64
# Of each split.
MAX_FILES = 4
# Starting a worker process with the job's packages is part of it.
TASK_TIMEOUT_S = 240.0
# Endings of a model that is one file.
MODEL_FILES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".pt")
PACKAGES = ("ray", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class ProbeTask:
    """What is checked on one node.

    Attributes:
        marker: Key of a file that the driver wrote in the storage, "" where it could not.
        locations: Manifests, recordings and model files, absolute.
        device: What workers have there. None: there are none.
    """

    storage_url: str
    storage_options: StorageOptions
    marker: str
    locations: tuple[str, ...]
    device: AcceleratorName | None


@dataclass
class Report:
    """What was found on one node."""

    node: str
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)


def run_probe(task: ProbeTask, node: str) -> Report:
    """Checks storage, data, secrets and hardware of the machine that this runs on."""
    report = Report(node, versions=versions_here())
    report.findings["node_storage"] = list(_storage(task))
    report.findings["node_data"] = [judge_files(task.locations, task.storage_options)]
    report.findings["node_secrets"] = list(_secrets(os.environ))
    report.findings["node_code"] = [judge_code(Path.cwd())]
    if task.device is not None:
        build = build_here(use_gpu=task.device != "cpu")
        report.findings["node_torch_build"] = [judge(build, devices_here(), wanted=task.device, machine=node)]
    return report


def versions_here() -> dict[str, str | None]:
    """Python and the packages whose versions must be the same everywhere."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


@lru_cache(maxsize=1)
def reports_of(subject: Subject) -> list[Report]:
    """Probes all nodes, once; where that is not possible, a report of its own has the reason."""
    config = subject.config
    storage = open_storage(storage_path_of(config), config.run.storage_options)
    folder, reports = f".rayscribe-probe-{uuid4().hex}", []
    marker = f"{folder}/marker"
    try:
        storage.write_bytes(marker, b"written by the driver")
    except StorageError as error:
        reports.append(_not_probed("the driver's node", f"run.storage_path: {error}"))
        marker = ""
    try:
        with connected(config, subject.address):
            return [*reports, *_probe_nodes(subject, marker)]
    except ResourceError as error:
        return [*reports, _not_probed("the cluster", str(error))]
    finally:
        if marker:
            storage.delete_tree(folder)


def _not_probed(node: str, reason: str) -> Report:
    return Report(node, {"node_storage": [problem(reason)]})


def _probe_nodes(subject: Subject, marker: str) -> list[Report]:
    config = subject.config
    remote: Any = ray.remote(run_probe)
    started = {}
    nodes = [node for node in ray.nodes() if node["Alive"]][:MAX_NODES]
    names = node_names(nodes)
    for node in nodes:
        task = ProbeTask(
            storage_path_of(config),
            config.run.storage_options,
            marker,
            locations_of(subject),
            device=device_on(node, config.scaling),
        )
        only_there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        name = names[node["NodeID"]]
        options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=only_there)
        started[options.remote(task, name)] = name
    done, late = ray.wait(list(started), num_returns=len(started), timeout=TASK_TIMEOUT_S)
    reports = [_report_of(reference, started[reference]) for reference in done]
    for reference in late:
        ray.cancel(reference, force=True)
        reason = f"no result in {TASK_TIMEOUT_S:.0f} s; check `ray status` and the node's logs"
        reports.append(_not_probed(started[reference], reason))
    return sorted(reports, key=lambda report: report.node)


def device_on(node: Mapping[str, Any], scaling: ScalingPart) -> AcceleratorName | None:
    """What workers have on one of Ray's nodes; None where it has no workers."""
    if not scaling.selects(node["Labels"]):
        return None
    return "cpu" if scaling.use_gpu and not node["Resources"].get("GPU") else scaling.device


def locations_of(subject: Subject) -> tuple[str, ...]:
    """Files that every node must be able to read: manifests, some recordings of each, files of decoding and model."""
    data, augment, name = subject.config.data, subject.config.augment, subject.config.model.name_or_path
    sources = [getattr(each, split) for each in (data, *data.mix) for split in SPLITS]
    manifests = (*sources, augment.noise_manifest, augment.rir_manifest)
    decode = [getattr(subject.config.decode, field) for field in subject.config.decode.files]
    # Of data in other formats, the files that its source names.
    options = subject.config.run.storage_options
    files = [path for path in (*manifests, *decode) if path is not None and path_in(path) == path]
    found = [file_of(path, options) for path in files]
    for split in subject.splits:
        found += split.source.node_files[:MAX_FILES]
    if name is not None and is_absolute(name):
        found.append(name if PurePosixPath(name).suffix in MODEL_FILES else f"{name}/config.json")
    return tuple(found)


def merged(reports: Iterable[Report], check: str) -> Iterator[Finding]:
    """The findings of a check over all nodes: each once with the names of its nodes; for all that is ok, one."""
    nodes_of: dict[Finding, list[str]] = {}
    for report in reports:
        for finding in report.findings.get(check, []):
            nodes_of.setdefault(finding, []).append(report.node)
    if not nodes_of:
        yield skipped("no node could be checked")
    sound = {node for finding, nodes in nodes_of.items() if finding.level == Level.OK for node in nodes}
    others = {finding: nodes for finding, nodes in nodes_of.items() if finding.level != Level.OK}
    for finding, nodes in others.items():
        yield Finding(level=finding.level, text=f"on {named(nodes)}: {finding.text}")
    sound -= {node for nodes in others.values() for node in nodes}
    if sound:
        example = next(finding.text for finding in nodes_of if finding.level == Level.OK)
        yield ok(f"on {named(sorted(sound))}: {example}")


def compare_versions(reports: Iterable[Report], here: Mapping[str, str | None]) -> Iterator[Finding]:
    """Compares the nodes' versions with those of the driver's node."""
    probed = [report for report in reports if report.versions]
    same = True
    for package, ours in here.items():
        others = {report.node: report.versions.get(package) for report in probed}
        different = {node: theirs for node, theirs in others.items() if theirs != ours}
        if different:
            same = False
            listed = named([f"{node} has {theirs or 'none'}" for node, theirs in different.items()])
            yield problem(f"{package} {ours} on the driver's node, but {listed}: install the same version everywhere")
    if same:
        listed = ", ".join(f"{package} {ours}" for package, ours in here.items())
        yield ok(f"the same on {len(probed)} nodes: {listed}")


def _report_of(reference: Any, node: str) -> Report:
    try:
        report: Report = ray.get(reference)
    except ray.exceptions.RayError as error:
        return _not_probed(node, f"nothing can be run there: {str(error).strip().splitlines()[-1]}")
    return report


def _storage(task: ProbeTask) -> Iterator[Finding]:
    storage = open_storage(task.storage_url, task.storage_options)
    try:
        storage.check_writable()
        shared = not task.marker or storage.exists(task.marker)
    except StorageError as error:
        yield problem(f"run.storage_path: {error}")
        return
    if shared:
        yield ok(f"run.storage_path: {task.storage_url} can be written, and has what other nodes write")
    else:
        yield problem(
            f"run.storage_path: {task.storage_url} is not the driver's folder but one of this node's own: mount "
            "the same file system on all nodes, or use a bucket"
        )


def judge_files(locations: Sequence[str], storage_options: StorageOptions) -> Finding:
    """Whether this machine can read files of data and model."""
    failed = []
    for location in locations:
        try:
            read_start(location, storage_options)
        except (OSError, StorageError) as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error
            failed.append(f"{location}: {reason}")
    if failed:
        return problem(
            f"{len(failed)} of {len(locations)} files cannot be read ({named(failed)}): put them where every "
            "node can read them under the same path, or in a bucket"
        )
    if locations:
        return ok(f"{len(locations)} files of data and model can be read")
    return skipped("the config names no file that nodes read")


def judge_code(folder: Path) -> Finding:
    """Whether other users of this machine can replace a job's code, which Ray unpacks once and never checks again."""
    for each in (*reversed(folder.parents), folder):
        mode = each.stat().st_mode
        # In a sticky folder only its owner can replace an entry.
        if mode & stat.S_IWOTH and mode & stat.S_IXOTH and not mode & stat.S_ISVTX:
            return warning(
                f"{each} is open to all users of the node, and the code of jobs lies in it: another user could replace "
                "it and run as this one: give `ray start` a --temp-dir in a folder of mode 0700"
            )
        if not mode & stat.S_IXOTH:
            break
    return ok("no other user of the node can replace the code of jobs")


def _secrets(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that each secret is where the job refers to; its value does not leave this function."""
    references = json.loads(environment.get(REFERENCES, "{}"))
    missing = []
    for name, reference in references.items():
        try:
            resolve_secrets({**environment, REFERENCES: json.dumps({name: reference})})
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        yield problem("; ".join(missing))
    else:
        yield ok(f"the {len(references)} secrets of the job are there" if references else "the job needs no secrets")


def _merged(check: str) -> Callable[[Subject], Iterator[Finding]]:
    return lambda subject: merged(reports_of(subject), check)


def check_versions(subject: Subject) -> Iterator[Finding]:
    """Compares Python and packages over the nodes."""
    yield from compare_versions(reports_of(subject), versions_here())


CHECKS = (
    Check("node_storage", "every node can write the storage, and read what others write", _merged("node_storage")),
    Check("node_data", "every node can read data and model", _merged("node_data")),
    Check("node_secrets", "every node has the secrets that the job refers to", _merged("node_secrets")),
    Check("node_code", "no other user of a node can replace a job's code", _merged("node_code")),
    Check("node_torch_build", "torch is built for each node's hardware", _merged("node_torch_build")),
    Check("node_versions", "Python and packages are the same on all nodes", check_versions),
)
