"""A repository of the Hub that takes a model: whose it is, whether it can be written, and a commit to it.

The token is huggingface_hub's own, of HF_TOKEN or of a login. It is in nothing that is written or raised here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from trainers.config.parts.hub_part import HubPart, refuse_model_id
from trainers.errors import ConfigError, RayscribeError, StorageError
from trainers.storage import hub_errors
from trainers.storage.retry import Explanation

T = TypeVar("T")

# What `from_pretrained` could take for a part of the model: of another one, a push removes it. History keeps it.
PARTS_OF_MODELS = ("*.safetensors", "*.bin", "*.json")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOW = "set HF_TOKEN where this runs (job.runtime_env.secrets brings it to a job), or log in there (hf auth login)"
_LATER = "try again later"


@dataclass(frozen=True)
class Repository:
    """A repository that the token's account may write to.

    Attributes:
        id: OWNER/NAME.
        url: Its page.
    """

    id: str
    url: str

    def commit(self, files: Mapping[str, Path | bytes], message: str) -> str:
        """Makes these its model, in one commit, so that nobody loads a part of it; gives the commit's id.

        What the Hub has already, an upload that broke off included, is not sent again. Other files stay, but for those
        of another model.

        Raises:
            ConfigError: the Hub refuses it.
            StorageError: the Hub cannot be reached.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi  # noqa: PLC0415

        def push() -> str:
            api = HfApi(token=_token())
            others = [name for name in api.list_repo_files(self.id) if name not in files]
            stale = [name for name in others if any(fnmatchcase(name, part) for part in PARTS_OF_MODELS)]
            # Each is changed by a try.
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                *(CommitOperationDelete(name, is_folder=False) for name in stale),
                *(CommitOperationAdd(name, content) for name, content in sorted(files.items())),
            ]
            return str(api.create_commit(self.id, operations, commit_message=message).oid)

        with _without_bars():
            return _ask(push, f"pushing to {self.url}")


def repository_of(part: HubPart, run_name: str, *, make: bool) -> Repository:
    """The repository that a run's model is pushed to, which can be written.

    Where there is none, it is made; unless `make`, that is only found possible as far as that can be known.

    Raises:
        ConfigError: there is no token, it is wrong, or it may not write there; or the name is none of the Hub's.
        StorageError: the Hub cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415

    name = part.model_id if part.model_id is not None else _name_of_run(run_name)
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


def _name_of_run(run_name: str) -> str:
    try:
        return refuse_model_id(run_name)
    except ValueError as error:
        raise ConfigError(f"hub.model_id is null, and run.name {run_name} {error}") from None


def _token() -> str:
    """The token, for what asks for it; a ConfigError, if there is none."""
    from huggingface_hub import get_token  # noqa: PLC0415

    token = get_token()
    if token is None:
        raise ConfigError(f"hub: there is no token of the Hub: {_HOW}")
    # What no header can hold would be repeated by the error of the request.
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(f"hub: the token of the Hub (not shown) has blanks or letters that none has: {_HOW}")
    return token


def _can_be_written(api: Any, identifier: str) -> bool:
    """Whether a repository is there; raises, if it may not be written."""
    try:
        api.auth_check(identifier, write=True)
    except Exception as error:
        if _status_of(error) != 404:
            raise
        return False
    return True


def _ask(call: Callable[[], T], what: str, account: Mapping[str, Any] | None = None) -> T:
    """Asks the Hub, again after errors that may pass; whatever it raises then is a RayscribeError without the token."""
    try:
        with hub_errors.one_line_of_retries(what):
            return hub_errors.HUB_RETRIES.run(call, action="reach the Hub for", url=what, explain=_explain)
    except RayscribeError as error:
        raise type(error)(_without_token(str(error))) from None
    except Exception as error:
        raise _refusal(error, what, account) from None


def _refusal(error: Exception, what: str, account: Mapping[str, Any] | None) -> RayscribeError:
    status = _status_of(error)
    if hub_errors.is_offline(error):
        return ConfigError(f"{what}: HF_HUB_OFFLINE forbids to ask the Hub: unset it, or set hub.push: false")
    # 401 is also what the Hub says of a private repository of others.
    if status in (401, 403, 404) and account is not None:
        return _foreign(what, account)
    if status == 401:
        return ConfigError(f"{what}: the Hub does not accept the token, which is wrong or has expired: {_HOW}")
    kind = StorageError if status is None else ConfigError
    text = _without_token(" ".join(str(error).split()))
    return kind(f"{what}: the Hub does not take it ({type(error).__name__}: {text})")


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
    # huggingface_hub reads some answers before it looks at their status.
    if isinstance(error, json.JSONDecodeError):
        return Explanation("the Hub does not respond as a Hub", _LATER, transient=True)
    return None


def _status_of(error: BaseException) -> int | None:
    """The status of the response that an error is about, or that it was caused by."""
    item: BaseException | None = error
    while item is not None:
        status = getattr(getattr(item, "response", None), "status_code", None)
        if status is not None:
            return int(status)
        item = item.__cause__
    return None


def _without_token(text: str) -> str:
    from huggingface_hub import get_token  # noqa: PLC0415

    token = get_token()
    return text.replace(token, "…") if token else text


@contextmanager
def _without_bars() -> Iterator[None]:
    """Within it, huggingface_hub draws no progress bars, which a log has as hundreds of lines."""
    from huggingface_hub.utils.tqdm import (  # noqa: PLC0415
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    was_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not was_off:
            enable_progress_bars()
