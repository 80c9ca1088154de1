"""Pushes a run's best model to a repository of the Hugging Face Hub, at the run's end or by `rayscribe push`.

The token is huggingface_hub's own, from HF_TOKEN or a login. Nothing that is written or raised here contains it.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from trainers.config.parts.run_part import HubPart, refuse_model_id
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError, RayscribeError, StorageError
from trainers.run_folder.journal import Journal, Push, State
from trainers.run_folder.layout import MODEL, RunFolder
from trainers.storage import hub_errors
from trainers.storage.retry import Explanation

T = TypeVar("T")

CARD = "README.md"
# Placeholder in a model card for the location of the model.
PLACE = "<this folder>"
# Files that `from_pretrained` may read as parts of a model. A push removes those of another model, which stay in the
# repository's history.
PARTS_OF_MODELS = ("*.safetensors", "*.bin", "*.json")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOW = "set HF_TOKEN where this runs (job.runtime_env.secrets brings it to a job), or log in there (hf auth login)"
_LATER = "try again later"


def is_pushed(state: State, part: HubPart, run_name: str) -> bool:
    """Returns True if the model of the run's result is in the configured repository of the Hub."""
    wanted = (state.finished.outputs if state.finished is not None else None, part.model_id or run_name)
    return any((push.outputs, push.model_id) == wanted for push in state.pushes)


def push_run(folder: RunFolder, part: HubPart) -> Push:
    """Pushes the model of a finished run, and records the push in the run's journal.

    Safe to repeat, since existing files are not sent again, and an unchanged model makes no new commit.

    Raises:
        ConfigError: the run has no model, or the Hub refuses the token, the name or the model.
        StorageError: the Hub, or the run's storage, is not available.
    """
    journal = Journal(folder)
    finish = journal.read().finished
    names = [name.removeprefix(f"{MODEL}/") for name in finish.files if name.startswith(f"{MODEL}/")] if finish else []
    if finish is None or not names:
        why = "has no model to push" if finish is not None else "has not finished, and has no model to push yet"
        raise ConfigError(f"{folder.url}: this run {why}: name a training that has finished")
    repository = repository_of(part, folder.name, make=True)
    with _on_this_disk(folder, f"{finish.outputs}/{MODEL}") as model:
        files: dict[str, Path | bytes] = {name: _file_in(model, name) for name in names}
        if CARD in files:
            files[CARD] = (model / CARD).read_text(encoding="utf-8").replace(PLACE, repository.id).encode()
        commit = repository.commit(files, f"The best model of {folder.name}")
    push = Push(finish.outputs, part.model_id or folder.name, repository.url, commit)
    journal.append(lambda state: None if push in state.pushes else {"kind": "pushed", **asdict(push)})
    return push


@contextmanager
def _on_this_disk(folder: RunFolder, key: str) -> Iterator[Path]:
    """Yields a local copy of a folder of the run."""
    if not is_url(folder.url):
        yield Path(folder.url).resolve() / key
        return
    with tempfile.TemporaryDirectory(prefix="rayscribe-push-") as local:
        folder.storage.download_folder(key, Path(local))
        yield Path(local).resolve()


def _file_in(model: Path, name: str) -> Path:
    """Returns the path of a model's file; raises ConfigError for links out of the folder, which others may create."""
    path = model / name
    if not path.resolve().is_relative_to(model):
        raise ConfigError(f"{path}: leads out of the model's folder, and is not pushed: remove the link")
    return path


@dataclass(frozen=True)
class Repository:
    """A repository, OWNER/NAME, to which the token's account may write, and the URL of its page."""

    id: str
    url: str

    def commit(self, files: Mapping[str, Path | bytes], message: str) -> str:
        """Replaces the repository's model in one commit, so that nobody loads a part of it; returns the commit's id.

        Files that the Hub already has are not sent again. Other files stay, except those of another model.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi  # noqa: PLC0415
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

        def push() -> str:
            api = HfApi(token=_token())
            others = [name for name in api.list_repo_files(self.id) if name not in files]
            stale = [name for name in others if any(fnmatchcase(name, part) for part in PARTS_OF_MODELS)]
            # Made again for each retry, since committing changes the operations.
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                *(CommitOperationDelete(name, is_folder=False) for name in stale),
                *(CommitOperationAdd(name, content) for name, content in sorted(files.items())),
            ]
            return str(api.create_commit(self.id, operations, commit_message=message).oid)

        # A log shows the Hub's progress bars as hundreds of lines.
        disable_progress_bars()
        return _ask(push, f"pushing to {self.url}")


def repository_of(part: HubPart, run_name: str, *, make: bool) -> Repository:
    """Returns the repository for a run's model, after checking that it can be written.

    With `make`, creates a missing repository; otherwise checks, as far as possible, that it can be created.

    Raises:
        ConfigError: the token is missing, wrong or may not write there; or the name is not valid on the Hub.
        StorageError: the Hub cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415

    try:
        name = part.model_id or refuse_model_id(run_name)
    except ValueError as error:
        raise ConfigError(f"hub.model_id is null, and run.name {run_name} {error}") from None
    token = _token()
    api = HfApi(token=token)
    account = _ask(lambda: api.whoami(token=token), "hub")
    own = str(account["name"])
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise ConfigError(f"hub: the token of {own} only reads: give one that may write; {_HOW}")
    identifier = name if "/" in name else f"{own}/{name}"
    what = f"hub.model_id: {identifier}"
    if make:
        _ask(lambda: api.create_repo(identifier, private=part.private, exist_ok=True), what, account)
    is_there = _ask(lambda: _can_be_written(api, identifier), what, account)
    roles = {own: "admin", **{each["name"]: each.get("roleInOrg") for each in account.get("orgs", ())}}
    if not is_there and not make and roles.get(identifier.partition("/")[0]) in (None, "read"):
        raise _foreign(what, account)
    return Repository(identifier, f"{api.endpoint}/{identifier}")


def _token() -> str:
    """Returns the token; raises ConfigError if there is none."""
    from huggingface_hub import get_token  # noqa: PLC0415

    token = get_token()
    if token is None:
        raise ConfigError(f"hub: there is no token of the Hub: {_HOW}")
    # The error of the request would quote characters that are not valid in headers.
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(f"hub: the token of the Hub (not shown) has characters that no token has: {_HOW}")
    return token


def _can_be_written(api: Any, identifier: str) -> bool:
    """Returns True if a repository exists; raises if it may not be written."""
    try:
        api.auth_check(identifier, write=True)
    except Exception as error:
        if hub_errors.status_of(error) != 404:
            raise
        return False
    return True


def _ask(call: Callable[[], T], what: str, account: Mapping[str, Any] | None = None) -> T:
    """Calls the Hub with retries; raises RayscribeErrors whose messages do not contain the token."""
    try:
        with hub_errors.one_line_of_retries(what):
            return hub_errors.HUB_RETRIES.run(call, action="reach the Hub for", url=what, explain=_explain)
    except RayscribeError as error:
        raise type(error)(_without_token(str(error))) from None
    except Exception as error:
        raise _refusal(error, what, account) from None


def _refusal(error: Exception, what: str, account: Mapping[str, Any] | None) -> RayscribeError:
    status = hub_errors.status_of(error)
    if hub_errors.is_offline(error):
        return ConfigError(f"{what}: HF_HUB_OFFLINE forbids to ask the Hub: unset it, or set hub.push: false")
    # The Hub also responds with 401 for a private repository of others.
    if status in (401, 403, 404) and account is not None:
        return _foreign(what, account)
    if status == 401:
        return ConfigError(f"{what}: the Hub does not accept the token, which is wrong or has expired: {_HOW}")
    kind = StorageError if status is None else ConfigError
    text = _without_token(" ".join(str(error).split()))
    return kind(f"{what}: the Hub refuses it ({type(error).__name__}: {text})")


def _foreign(what: str, account: Mapping[str, Any]) -> ConfigError:
    own = account["name"]
    return ConfigError(
        f"{what}: the token of {own} may not write there: the name is somebody else's, or the token lacks the right: "
        f"name a repository of {own}, or of an organization for which it may write (--set hub.model_id=OWNER/NAME), or "
        f"give another token: {_HOW}"
    )


def _explain(error: BaseException) -> Explanation | None:
    found = hub_errors.explain_hub_error(error)
    if found is not None:
        return Explanation(found.cause, _LATER, transient=True)
    # huggingface_hub parses some responses before it checks their status.
    is_no_json = isinstance(error, json.JSONDecodeError)
    return Explanation("the Hub does not respond as a Hub", _LATER, transient=True) if is_no_json else None


def _without_token(text: str) -> str:
    from huggingface_hub import get_token  # noqa: PLC0415

    token = get_token()
    return text.replace(token, "…") if token else text
