"""What a test's Ray runs in harness of its own `setup_worker.py`: it asks the worker server for a forked worker.

A worker of this project imports Ray, torch and transformers, which is most of what a test costs that restarts its
workers. Of the standard library only, since it runs once for each worker.
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

SOCKET_VARIABLE = "RAYSCRIBE_TEST_WORKER_SERVER"


def main() -> None:
    """Sends a worker's command line, environment, folder and output to the server; ends when it has them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", type=json.loads, default={})
    parser.add_argument("--language")
    options, command = parser.parse_known_args()
    context = options.serialized_runtime_env_context
    folder = str(Path.cwd())
    match context.get("command_prefix"):
        case ["cd", working_dir, "&&"]:
            folder = working_dir
            plain = True
        case prefix:
            plain = not prefix
    if not plain or context.get("py_executable", sys.executable) != sys.executable:
        ray_s_own = Path(command[0]).with_name("setup_worker.py")
        os.execv(sys.executable, [sys.executable, str(ray_s_own), *sys.argv[1:]])
    request = {
        "arguments": command,
        "environment": dict(os.environ),
        "env_vars": context.get("env_vars", {}),
        "folder": folder,
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET_VARIABLE])
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        server.shutdown(socket.SHUT_WR)
        server.recv(1)


if __name__ == "__main__":
    main()
