"""The same looks from every node of the cluster: storage that all share, data that all read, torch that fits each.

Tasks that reserve nothing, so that they run on a busy cluster too.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.schema import is_absolute
from trainers.config.secrets import REFERENCES, resolve_secrets
from trainers.data.sources import read_location
from trainers.distributed.ray_connection import connected
from trainers.errors import ConfigError, ResourceError, StorageError
from trainers.inspection.hardware_checks import build_here, devices_here, judge
from trainers.inspection.notes import Check, Level, Note, fault, named, ok, skipped
from trainers.inspection.subject import Subject
from trainers.storage import open_storage

MOST_NODES = 64
MOST_RECORDINGS = 4
# Starting a worker process with the job's packages is part of it.
ANSWER_DEADLINE_S = 240.0
PACKAGES = ("ray", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class Errand:
    """What is looked at on one node.

    Attributes:
        storage_url: Folder or URL under which run folders are made.
        s3_endpoint_url: Server of s3:// URLs, None for the default.
        mark: Key of a file that the driver wrote there, "" where it could not.
        locations: Manifests, recordings and model files, absolute.
        use_gpu: Whether workers on this node take GPUs.
    """

    storage_url: str
    s3_endpoint_url: str | None
    mark: str
    locations: tuple[str, ...]
    use_gpu: bool


@dataclass
class Report:
    """What was seen on one node.

    Attributes:
        node: Its address.
        notes: Check → what it says there.
        versions: Package → version there.
    """

    node: str
    notes: dict[str, list[Note]] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)


def look_around(errand: Errand, node: str) -> Report:
    """Looks at storage, data and hardware of the machine that this runs on."""
    report = Report(node, versions=versions_here())
    report.notes["node_storage"] = list(_storage(errand))
    report.notes["node_data"] = list(_data(errand))
    report.notes["node_secrets"] = list(_secrets(os.environ))
    report.notes["node_torch_build"] = [judge(build_here(), devices_here(), use_gpu=errand.use_gpu, machine=node)]
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
    """Looks around on all nodes, once; what cannot be done at all is told in place of a node's report."""
    config = subject.config
    storage = open_storage(storage_path_of(config), s3_endpoint_url=config.run.s3_endpoint_url)
    mark, reports = f".rayscribe-probe-{uuid4().hex}", []
    try:
        storage.write_bytes(f"{mark}/mark", mark.encode())
    except StorageError as error:
        reports.append(_not_asked("the driver's node", f"run.storage_path: {error}"))
        mark = ""
    try:
        with connected(config, subject.address):
            return [*reports, *_reports(subject, f"{mark}/mark" if mark else "")]
    except ResourceError as error:
        return [*reports, _not_asked("the cluster", str(error))]
    finally:
        if mark:
            storage.delete_tree(mark)


def _not_asked(place: str, why: str) -> Report:
    return Report(place, {"node_storage": [fault(why)]})


def _reports(subject: Subject, mark: str) -> list[Report]:
    config = subject.config
    remote: Any = ray.remote(look_around)
    asked = {}
    for node in [node for node in ray.nodes() if node["Alive"]][:MOST_NODES]:
        errand = Errand(
            storage_path_of(config),
            config.run.s3_endpoint_url,
            mark,
            locations_of(subject),
            use_gpu=config.scaling.use_gpu and node["Resources"].get("GPU", 0) > 0,
        )
        here_only = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        address = node["NodeManagerAddress"]
        task = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=here_only).remote(errand, address)
        asked[task] = address
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_DEADLINE_S)
    reports = [_answer(task, asked[task]) for task in done]
    for task in late:
        ray.cancel(task, force=True)
        why = f"no answer in {ANSWER_DEADLINE_S:.0f} s; look at `ray status` and the node's logs"
        reports.append(_not_asked(asked[task], why))
    return sorted(reports, key=lambda report: report.node)


def locations_of(subject: Subject) -> tuple[str, ...]:
    """Files that every node must be able to read: manifests, a few recordings of each, a model folder's config."""
    data, name = subject.config.data, subject.config.model.name_or_path
    found = [path for path in (data.train, data.validation, data.test) if path is not None]
    for split in subject.splits:
        if "audio_bytes" not in split.table.column_names:
            found += split.table["audio"].slice(0, MOST_RECORDINGS).to_pylist()
    if name is not None and is_absolute(name):
        found.append(f"{name}/config.json")
    return tuple(found)


def merged(reports: Iterable[Report], check: str) -> Iterator[Note]:
    """What a check says over all nodes: once where it is fine, otherwise with the nodes' names."""
    said: dict[Note, list[str]] = {}
    for report in reports:
        for note in report.notes.get(check, []):
            said.setdefault(note, []).append(report.node)
    if not said:
        yield skipped("no node could be asked")
    fine = {node for note, nodes in said.items() if note.level == Level.OK for node in nodes}
    bad = {note: nodes for note, nodes in said.items() if note.level != Level.OK}
    for note, nodes in bad.items():
        yield Note(note.level, f"from {named(nodes)}: {note.text}")
    fine -= {node for nodes in bad.values() for node in nodes}
    if fine:
        example = next(note.text for note in said if note.level == Level.OK)
        yield ok(f"from {named(sorted(fine))}: {example}")


def compare_versions(reports: Iterable[Report], here: Mapping[str, str | None]) -> Iterator[Note]:
    """Compares the nodes' versions with those of the driver's node."""
    seen = [report for report in reports if report.versions]
    same = True
    for package, ours in here.items():
        others = {report.node: report.versions.get(package) for report in seen}
        different = {node: theirs for node, theirs in others.items() if theirs != ours}
        if different:
            same = False
            listed = named([f"{node} has {theirs or 'none'}" for node, theirs in different.items()])
            yield fault(f"{package} {ours} on the driver's node, but {listed}: install the same version everywhere")
    if same:
        listed = ", ".join(f"{package} {ours}" for package, ours in here.items())
        yield ok(f"the same on {len(seen)} nodes: {listed}")


def _answer(task: Any, node: str) -> Report:
    try:
        report: Report = ray.get(task)
    except ray.exceptions.RayError as error:
        return _not_asked(node, f"nothing can be run there: {str(error).strip().splitlines()[-1]}")
    return report


def _storage(errand: Errand) -> Iterator[Note]:
    storage = open_storage(errand.storage_url, s3_endpoint_url=errand.s3_endpoint_url)
    try:
        storage.check_writable()
        shared = not errand.mark or storage.exists(errand.mark)
    except StorageError as error:
        yield fault(f"run.storage_path: {error}")
        return
    if shared:
        yield ok(f"run.storage_path: {errand.storage_url} can be written, and shows what other nodes write")
    else:
        yield fault(
            f"run.storage_path: {errand.storage_url} is not the driver's folder but one of this node's own: mount "
            "the same file system on all nodes, or use s3://"
        )


def _data(errand: Errand) -> Iterator[Note]:
    failed = []
    for location in errand.locations:
        try:
            read_location(location, errand.s3_endpoint_url)
        except FileNotFoundError:
            failed.append(f"{location}: no such file")
        except (OSError, StorageError) as error:
            failed.append(f"{location}: {error}")
    if failed:
        yield fault(
            f"{len(failed)} of {len(errand.locations)} files cannot be read ({named(failed)}): put them where every "
            "node sees them under the same path, or on s3://"
        )
    elif errand.locations:
        yield ok(f"{len(errand.locations)} files of data and model can be read")
    else:
        yield skipped("the config names no file that nodes would read")


def _secrets(environment: Mapping[str, str]) -> Iterator[Note]:
    """Looks whether each secret is where the job's references say; what it is does not leave this function."""
    references = json.loads(environment.get(REFERENCES, "{}"))
    absent = []
    for name, place in references.items():
        try:
            resolve_secrets({**environment, REFERENCES: json.dumps({name: place})})
        except ConfigError as error:
            absent.append(str(error))
    if absent:
        yield fault("; ".join(absent))
    else:
        yield ok(f"the {len(references)} secrets of the job are there" if references else "the job needs no secrets")


def _merged(check: str) -> Callable[[Subject], Iterator[Note]]:
    return lambda subject: merged(reports_of(subject), check)


def check_versions(subject: Subject) -> Iterator[Note]:
    """Compares Python and packages over the nodes."""
    yield from compare_versions(reports_of(subject), versions_here())


CHECKS = (
    Check("node_storage", "every node can write the storage, and sees what others write", _merged("node_storage")),
    Check("node_data", "every node can read data and model", _merged("node_data")),
    Check("node_secrets", "every node has the secrets that the job refers to", _merged("node_secrets")),
    Check("node_torch_build", "torch is built for each node's hardware", _merged("node_torch_build")),
    Check("node_versions", "Python and packages are the same on all nodes", check_versions),
)
