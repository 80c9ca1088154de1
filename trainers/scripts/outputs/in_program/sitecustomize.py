"""Makes the main process wait at a barrier until the other nodes have the files that it has written before.

Programs prepare data on the main process while other ranks wait at a barrier, or for an object that it broadcasts; then
all ranks read the data. Python imports this module at its start if its folder is in PYTHONPATH. `shared_files.py` is
the other side:

    <requests>/asked-<n>     the program: there are new files, for the n-th time
    <requests>/shared-<n>    the keeper: all nodes have them
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from typing import Any

OUTPUT, REQUESTS = "RAYSCRIBE_OUTPUT_FOLDER", "RAYSCRIBE_REQUESTS"
POLL_S = 0.02
# torch's module with the barriers, and its functions in which ranks wait for each other.
_MODULE, _BARRIERS = "torch.distributed.distributed_c10d", ("barrier", "monitored_barrier", "broadcast_object_list")
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Shared:
    """The files that all nodes have."""

    def __init__(self, output: str, requests: str):
        self._output, self._requests = output, requests
        self._names: set[str] = set()
        self._asked = 0

    def update(self) -> None:
        """Waits until other nodes have the same files, if any were added or removed since the last call."""
        if not self._is_main():
            return
        names = {os.path.join(parent, name) for parent, _, found in os.walk(self._output) for name in found}
        if names == self._names:
            return
        self._asked += 1
        with open(os.path.join(self._requests, f"asked-{self._asked}"), "x"):
            pass
        while not os.path.exists(os.path.join(self._requests, f"shared-{self._asked}")):
            time.sleep(POLL_S)
        self._names = names

    def _is_main(self) -> bool:
        """Returns True in the first process with a barrier; processes that it starts may have their own barriers."""
        mark = os.path.join(self._requests, "process")
        try:
            with open(mark, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            with open(mark) as file:
                return file.read() == str(os.getpid())
        return True


class _BarrierFinder(importlib.abc.MetaPathFinder):
    """Finds torch's module with the barriers as Python does, and patches it once it is loaded."""

    def __init__(self, shared: _Shared):
        self._shared = shared

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._share_before_barriers(spec.loader)
        return spec

    def _share_before_barriers(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            for name in _BARRIERS:
                if hasattr(module, name):
                    setattr(module, name, self._shared_before(getattr(module, name)))

        loader.exec_module = exec_module

    def _shared_before(self, barrier: Any) -> Any:
        @functools.wraps(barrier)
        def shared_barrier(*arguments: Any, **named: Any) -> Any:
            self._shared.update()
            return barrier(*arguments, **named)

        return shared_barrier


def _run_next() -> None:
    """Runs the `sitecustomize` that this module hides from Python, if any."""
    others = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if OUTPUT in os.environ and REQUESTS in os.environ:
    sys.meta_path.insert(0, _BarrierFinder(_Shared(os.environ[OUTPUT], os.environ[REQUESTS])))
_run_next()
