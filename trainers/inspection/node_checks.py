"""Checks on every node of the cluster that storage is shared, data can be read, and torch fits the hardware.

The checks are Ray tasks that reserve nothing, so that they run on a busy cluster too. `WorkerCheck` is what each worker
of a run checks on its own node. Ray Train's controller imports this module to send `WorkerCheck` to the workers, so the
module loads no heavy library.
"""

import json
import os
import platform
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.parts.data_location import path_in
from trainers.config.parts.scaling_part import GPU_ACCELERATORS, AcceleratorName, ScalingPart
from trainers.config.schema import TrainConfig
from trainers.config.secrets import REFERENCES, resolve_secrets
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions, is_absolute, is_url
from trainers.data.sources.archives.source_files import file_of
from trainers.data.sources.data_source import SPLITS
from trainers.data.sources.located_files import read_start
from trainers.data.sources.recording_readers import RecordingReader
from trainers.distributed.hardware import KINDS, devices_here, judge
from trainers.distributed.ray_connection import connected, node_names
from trainers.errors import AudioError, ConfigError, DataError, RayscribeError, ResourceError, StorageError
from trainers.findings import Check, Finding, Level, Moment, Need, found_in, named, ok, problem, skipped, warning
from trainers.inspection.machine_checks import build_here
from trainers.inspection.subject import Subject
from trainers.run_folder.layout import PACKAGES, version_of
from trainers.storage import open_storage
from trainers.storage.factory import tried_out

MAX_NODES = 64
# Number of a split's files that each node must read.
MAX_FILES = 4
# Number of recordings of a split that each node must read before any is prepared.
EXAMPLES = 8
# File that each prepared set has.
SUMMARY = "summary.json"
# Includes the start of a worker process with the job's packages.
TASK_TIMEOUT_S = 240.0
# Extensions of models that are a single file.
MODEL_FILES = (".zip", ".tar", ".gz", ".tgz", ".pt")
# Timeout before training, in case a node is busy or imports from a slow disk. What such a node lacks is reported by the
# training itself.
SHORT_TIMEOUT_S = 60.0
# Time within which a network file system must show a new file, and seconds between two polls.
FILE_VISIBILITY_TIMEOUT_S, POLL_S = 5.0, 0.25
# Name of the driver's node in reports.
DRIVER = "the driver's node"

# For checks that run in a job that is connected to Ray.
RAY: Need[Subject] = Need(Moment.NODES, lambda _: None)
Answer = TypeVar("Answer")


def versions_here() -> dict[str, str | None]:
    """Returns the versions of Python and of the packages that must be the same on all machines; None if missing."""
    return {"python": platform.python_version(), **{package: version_of(package) for package in PACKAGES}}


@dataclass(frozen=True)
class ProbeTask:
    """The checks of one node.

    Attributes:
        marker: Name of a file that the driver wrote into each folder; "" if it could not.
        locations: Absolute paths or URLs of manifests, recordings and model files.
        device: Accelerator of the workers on this node; None if it has no workers.
        versions: Versions on the driver's node, where the task is made.
    """

    folders: Mapping[str, str]
    marker: str
    storage_options: StorageOptions
    locations: tuple[str, ...]
    device: AcceleratorName | None
    versions: Mapping[str, str | None] = field(default_factory=versions_here)


class Report(NamedTuple):
    """The findings of one node, by name of the check."""

    node: str
    findings: Mapping[str, Sequence[Finding]]


def run_probe(task: ProbeTask, node: str) -> Report:
    """Checks storage, data, secrets, hardware and versions of this machine."""
    findings = {
        "node_storage": [*_storage(task)],
        "node_data": [judge_files(task.locations, task.storage_options)],
        "node_secrets": [judge_secrets(os.environ)],
        "node_code": [judge_code(Path.cwd())],
        "node_versions": [judge_versions(task.versions)],
    }
    if task.device is not None:
        build = build_here(use_gpu=task.device != "cpu")
        findings["node_torch_build"] = [judge(build, devices_here(), wanted=task.device, machine=node)]
    return Report(node, findings)


def _storage(task: ProbeTask) -> Iterator[Finding]:
    for name, folder in task.folders.items():
        found = tried_out(name, folder, task.storage_options, elsewhere=False)
        if found.level == Level.OK and task.marker and unseen({name: folder}, task.marker, task.storage_options):
            found = problem(not_shared(name, folder, "here"))
        yield found


def judge_versions(expected: Mapping[str, str | None]) -> Finding:
    """Compares the versions on this machine with those on the driver's node."""
    here = versions_here()
    others = [
        f"{package} is {here[package] or 'missing'}, but {ours or 'missing'} on {DRIVER}"
        for package, ours in expected.items()
        if here[package] != ours
    ]
    if others:
        return problem(f"{'; '.join(others)}: install the same versions everywhere")
    return ok(f"{', '.join(f'{package} {ours}' for package, ours in expected.items())}, as on {DRIVER}")


@lru_cache(maxsize=1)
def reports_of(subject: Subject) -> list[Report]:
    """Probes all nodes once; adds reports of findings on the driver's node, and of why no node could be probed."""
    config, reports, locations, marker = subject.config, list[Report](), tuple[str, ...](), ""
    folders, options = folders_of(config), config.run.storage_options
    try:
        locations = locations_of(subject)
    except RayscribeError as error:
        reports.append(Report(DRIVER, {"node_data": [found_in(error)]}))
    with ExitStack() as stack:
        try:
            marker = stack.enter_context(marked(folders, options))
        except StorageError as error:
            reports.append(Report(DRIVER, {"node_storage": [found_in(error)]}))
        try:
            stack.enter_context(connected(config, subject.address))
        except ResourceError as error:
            return [*reports, Report("the cluster", {"node_storage": [found_in(error)]})]

        def task(node: Mapping[str, Any], name: str) -> tuple[ProbeTask, str]:
            return ProbeTask(folders, marker, options, locations, device_on(node, config.scaling)), name

        nodes = [node for node in ray.nodes() if node["Alive"]][:MAX_NODES]
        probed, silent = ask(nodes, run_probe, task, TASK_TIMEOUT_S)
    not_probed = [Report(node, {"node_storage": [problem(reason)]}) for node, reason in silent.items()]
    return [*reports, *sorted([*probed.values(), *not_probed], key=lambda report: report.node)]


def ask(
    nodes: Sequence[Mapping[str, Any]],
    question: Callable[..., Answer],
    arguments: Callable[[Mapping[str, Any], str], Iterable[Any]],
    timeout_s: float,
) -> tuple[dict[str, Answer], dict[str, str]]:
    """Calls a function on each of Ray's nodes; returns the results, and the reasons for failures, by node name.

    `arguments` makes the function's arguments from a node and its name.
    """
    remote: Any = ray.remote(question)
    asked, names = {}, node_names(nodes)
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        name = names[node["NodeID"]]
        asked[options.remote(*arguments(node, name))] = name
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
    answers: dict[str, Answer] = {}
    silent = {asked[each]: f"no result in {timeout_s:.0f} s; check `ray status` and the node's logs" for each in late}
    for reference in late:
        ray.cancel(reference, force=True)
    for reference in done:
        try:
            answers[asked[reference]] = ray.get(reference)
        except RayError as error:
            silent[asked[reference]] = f"nothing can run there: {str(error).strip().splitlines()[-1]}"
    return answers, silent


def other_nodes(*wanted: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns the nodes, except the driver's, whose total resources satisfy at least one of these demands."""
    own = ray.get_runtime_context().get_node_id()

    def holds(node: Mapping[str, float], each: Mapping[str, float]) -> bool:
        return all(node.get(name, 0.0) >= amount for name, amount in each.items())

    others = (node for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)
    return [node for node in others if any(holds(node["Resources"], each) for each in wanted)]


def folders_of(config: TrainConfig) -> dict[str, str]:
    """Returns the folders and buckets that the driver and other nodes write, by config field."""
    folders = {"run.storage_path": storage_path_of(config), "data.cache_dir": config.data.cache_dir}
    return {name: folder for name, folder in folders.items() if folder is not None}


def refuse_unshared_folders(config: TrainConfig, task_resources: Mapping[str, float]) -> None:
    """Refuses a folder that the driver does not share with all other nodes that may run workers or preparing tasks."""
    nodes = other_nodes(config.scaling.worker_resources, {"CPU": 1.0, **task_resources})
    folders = {name: folder for name, folder in folders_of(config).items() if not is_url(folder)}
    if not nodes or not folders:
        return
    options = config.run.storage_options
    with marked(folders, options) as marker:
        found, _ = ask(nodes, unseen, lambda *_: (folders, marker, options), SHORT_TIMEOUT_S)
    for name, folder in folders.items():
        if without := sorted(node for node, lacking in found.items() if name in lacking):
            raise ConfigError(not_shared(name, folder, f"on {named(without)}"))


@contextmanager
def marked(folders: Mapping[str, str], options: StorageOptions) -> Iterator[str]:
    """Writes a new file into each of these folders and buckets while the block runs; yields its name."""
    marker = f".rayscribe-shared-{uuid4().hex}"
    try:
        for name, folder in folders.items():
            try:
                open_storage(folder, options).write_bytes(marker, b"")
            except StorageError as error:
                raise type(error)(f"{name}: {error}") from None
        yield marker
    finally:
        for folder in folders.values():
            with suppress(StorageError):
                open_storage(folder, options).delete(marker)


def unseen(folders: Mapping[str, str], file: str, options: StorageOptions) -> list[str]:
    """Returns the fields of the folders in which this node does not find a file within FILE_VISIBILITY_TIMEOUT_S."""
    end = time.monotonic() + FILE_VISIBILITY_TIMEOUT_S

    def missing() -> list[str]:
        return [name for name, folder in folders.items() if not open_storage(folder, options).exists(file)]

    while (names := missing()) and time.monotonic() < end:
        time.sleep(POLL_S)
    return names


def not_shared(name: str, folder: str, where: str) -> str:
    """Returns the message for a folder or bucket that other machines (`where`) do not share with the driver."""
    share = "mount the same file system on all nodes, or use a bucket"
    reach = "reach the same service from all nodes (run.s3_endpoint_url, AWS_ENDPOINT_URL)"
    return (
        f"{name}: {folder} is not the same for all nodes: what the driver writes there is not seen {where}: "
        f"{reach if is_url(folder) else share}"
    )


def refuse_unread_recordings(
    blocks: Sequence[pa.Table], reader: RecordingReader, task_resources: Mapping[str, float]
) -> None:
    """Makes each node that may prepare rows read some recordings, since those that it cannot read would be lost.

    Raises:
        DataError: a node cannot read recordings that the driver's node reads; the message has them, and the reasons.
    """
    nodes = other_nodes({"CPU": 1.0, **task_resources})
    if not nodes:
        return
    table = pa.concat_tables(blocks)
    rows = table.take(np.unique(np.linspace(0, len(table) - 1, EXAMPLES).astype(int))).to_pylist()
    here = unread_recordings(reader, rows)
    found, _ = ask(nodes, unread_recordings, lambda *_: (reader, rows), SHORT_TIMEOUT_S)
    for node, problems in sorted(found.items()):
        lacking = [f"{name}: {reason}" for name, reason in problems.items() if name not in here]
        if lacking:
            raise DataError(
                f"on {node}: {len(lacking)} of {len(rows)} recordings cannot be read that are read on the driver's "
                f"node ({named(lacking)}): put them where every node can read them under the same path, or into a "
                "bucket"
            )


def unread_recordings(reader: RecordingReader, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the recordings of rows that cannot be read on this node, with the reasons."""
    resolve_secrets(os.environ)
    problems: dict[str, str] = {}
    for row in rows:
        try:
            (found,) = reader.read([row])
        except (DataError, StorageError) as error:
            found = AudioError(str(error))
        if isinstance(found, AudioError):
            problems[str(row["audio"] or row["id"])] = str(found)
    return problems


@dataclass(frozen=True)
class WorkerCheck:
    """Checks the node of a worker when called in its process."""

    device: AcceleratorName
    folders: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Iterable[str], *, device: AcceleratorName) -> "WorkerCheck":
        return cls(device, tuple(url for url in prepared if not is_url(url)))

    def __call__(self) -> None:
        """Raises ResourceError if torch does not use the node's GPUs, DataError if the node lacks the data."""
        node = ray.util.get_node_ip_address()
        if self.device in GPU_ACCELERATORS:
            build = build_here(use_gpu=True)
            # Describing the GPUs for a message starts a process, which is not necessary if torch sees them.
            if not build.sees_devices or build.kind not in KINDS[self.device]:
                finding = judge(build, devices_here(), wanted=self.device, machine=node)
                if finding.level == Level.ERROR:
                    raise ResourceError(finding.text)
        # Waits for a slow file system; a file that exists may still be unreadable.
        unseen({folder: folder for folder in self.folders}, SUMMARY, DEFAULT_STORAGE_OPTIONS)
        finding = judge_files([f"{folder}/{SUMMARY}" for folder in self.folders], DEFAULT_STORAGE_OPTIONS)
        if finding.level == Level.ERROR:
            raise DataError(f"on {node}: {finding.text}")


def device_on(node: Mapping[str, Any], scaling: ScalingPart) -> AcceleratorName | None:
    """Returns the accelerator of workers on one of Ray's nodes; None if it has no workers."""
    if not scaling.selects(node["Labels"]):
        return None
    return "cpu" if scaling.use_gpu and not node["Resources"].get("GPU") else scaling.device


def locations_of(subject: Subject) -> tuple[str, ...]:
    """Returns the files that every node must read: manifests, some recordings, and files of decoding and model."""
    data, augment, name = subject.config.data, subject.config.augment, subject.config.model.name_or_path
    sources = [getattr(each, split) for each in (data, *data.mix) for split in SPLITS]
    manifests = (*sources, augment.noise_manifest, augment.rir_manifest)
    decode = [getattr(subject.config.decode, field) for field in subject.config.decode.files]
    # The files of data in other formats come from its source, below.
    options = subject.config.run.storage_options
    files = [path for path in (*manifests, *decode) if path is not None and path_in(path) == path]
    found = [file_of(path, options) for path in files]
    for split in subject.splits:
        found += split.source.node_files[:MAX_FILES]
    if name is not None and is_absolute(name):
        found.append(name if PurePosixPath(name).suffix in MODEL_FILES else f"{name}/config.json")
    return tuple(found)


def merged(reports: Iterable[Report], check: str) -> Iterator[Finding]:
    """Yields each problem or warning of a check once, with its nodes' names, and one finding for all other nodes."""
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


def judge_files(locations: Sequence[str], storage_options: StorageOptions) -> Finding:
    """Checks that this machine can read files of data and model."""
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
    """Checks that other users of this machine cannot replace a job's code, which Ray unpacks once per node."""
    for each in (*reversed(folder.parents), folder):
        mode = each.stat().st_mode
        # In a sticky folder only the owner of an entry can replace it.
        if mode & stat.S_IWOTH and mode & stat.S_IXOTH and not mode & stat.S_ISVTX:
            return warning(
                f"{each} is open to all users of the node, and contains the code of jobs, which another user could "
                "replace: give `ray start` a --temp-dir in a folder of mode 0700"
            )
        if not mode & stat.S_IXOTH:
            break
    return ok("no other user of the node can replace the code of jobs")


def judge_secrets(environment: Mapping[str, str]) -> Finding:
    """Checks that each secret of the job can be resolved; the values do not leave this function."""
    references = json.loads(environment.get(REFERENCES, "{}"))
    missing = []
    for name, reference in references.items():
        try:
            resolve_secrets({**environment, REFERENCES: json.dumps({name: reference})})
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        return problem("; ".join(missing))
    return ok(f"the {len(references)} secrets of the job are there" if references else "the job needs no secrets")


def _merged(name: str) -> Check[Subject]:
    return Check(name, (RAY,), lambda subject: merged(reports_of(subject), name))


_NAMES = ("node_storage", "node_data", "node_secrets", "node_code", "node_torch_build", "node_versions")
CHECKS = tuple(map(_merged, _NAMES))
