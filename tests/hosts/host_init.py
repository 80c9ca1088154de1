"""The first process of a test host: mounts what the host has for itself, and runs its sshd.

It starts in namespaces of its own (mounts, processes, network, host name) and lives until its standard input ends, on
whose first line it finds a `Setup`. All other processes of the host end with it. Of the standard library only.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

# What no host shares with another, and how much fits.
OWN_FOLDERS = {"/run": "16m", "/tmp": "2g", "/var/tmp": "64m", "/root": "64m", "/dev/shm": "512m"}
SSHD_CONFIG = """
HostKey /run/host_key
AuthorizedKeysFile /root/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PidFile none
Subsystem sftp internal-sftp
"""
POLL_S = 0.2


class Setup(TypedDict):
    """What makes one host differ from another.

    Attributes:
        name: Its host name.
        host_key: Private key of its sshd.
        authorized_key: Public key of who may log in.
        environment: Variables of every shell.
        read_only: Files and folders of this machine that the host sees, such as the installed software.
        shared: Folders that it writes to as well.
    """

    name: str
    host_key: str
    authorized_key: str
    environment: dict[str, str]
    read_only: list[str]
    shared: list[str]


def main() -> None:
    """Makes the host, says `ready`, and keeps its sshd running."""
    setup: Setup = json.loads(sys.stdin.readline())
    run("hostname", setup["name"])
    run("mount", "--make-rprivate", "/")
    mount_folders(setup)
    write_files(setup)
    sshd = start_sshd()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        # Children of processes that have ended are this process's.
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            if ended.si_pid == sshd:
                sshd = start_sshd()


def mount_folders(setup: Setup) -> None:
    """Mounts the host's own folders, and in them what it sees of this machine."""
    held = [*setup["read_only"], *setup["shared"]]
    run("mount", "-t", "tmpfs", "-o", f"size={OWN_FOLDERS['/run']}", "tmpfs", "/run")
    # What lies in a folder that is about to be covered is held elsewhere meanwhile.
    for number, path in enumerate(held):
        aside = Path(f"/run/held/{number}")
        make_mount_point(aside, like=Path(path))
        run("mount", "--bind", path, str(aside))
    for folder, size in OWN_FOLDERS.items():
        if folder != "/run":
            run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    for number, path in enumerate(held):
        aside = Path(f"/run/held/{number}")
        make_mount_point(Path(path), like=aside)
        run("mount", "--move", str(aside), path)
        if path in setup["read_only"]:
            run("mount", "-o", "remount,bind,ro", path)


def make_mount_point(path: Path, *, like: Path) -> None:
    """An empty file or folder, as the other one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if like.is_dir():
        path.mkdir(exist_ok=True)
    else:
        path.touch()


def write_files(setup: Setup) -> None:
    """Keys, the configuration of sshd, and what every shell reads."""
    Path("/tmp").chmod(0o1777)
    Path("/root").chmod(0o700)
    Path("/run/sshd").mkdir(mode=0o755)
    Path("/run/sshd_config").write_text(SSHD_CONFIG)
    write_private(Path("/run/host_key"), setup["host_key"])
    Path("/root/.ssh").mkdir(mode=0o700)
    write_private(Path("/root/.ssh/authorized_keys"), setup["authorized_key"])
    exports = "".join(f"export {name}='{value}'\n" for name, value in setup["environment"].items())
    # A command over ssh reads this one alone, a login shell the other.
    Path("/root/.bashrc").write_text(exports)
    Path("/root/.profile").write_text(". ~/.bashrc\n")


def write_private(path: Path, content: str) -> None:
    """A file that only its owner reads."""
    path.touch(0o600)
    path.write_text(content)


def start_sshd() -> int:
    """Starts sshd on port 22 of the host's network; gives its process id."""
    return subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/run/sshd_config"], stdin=subprocess.DEVNULL).pid


def run(*command: str) -> None:
    """Runs a command that must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
