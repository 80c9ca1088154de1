#!/usr/bin/env bash
# Runs a command with the job's packages; the first process on a node installs them, once.
#
#   bash install_and_run.sh                                         runs python task.py
#   bash install_and_run.sh python task.py --config recipe.yaml
#
# They go into a virtual environment next to the node's own packages, in RAYSCRIBE_ENVIRONMENTS or else in
# ~/.cache/rayscribe/environments, named by a hash of the requirements and of the node's Python.
set -euo pipefail

key=c2cf2ddcef9a911e
tool=pip
options=(--disable-pip-version-check --no-input --quiet)

fail() {
    printf '%s: %s\n' "install_and_run.sh" "$1" >&2
    exit 12
}

# Creates the environment; the arguments are its folder, and the node's Python.
install() {
    local environment=$1 base=$2
    exec 9>"$environment.lock"
    flock 9
    # Another process may have created it while this one waited.
    [[ -e $environment/.ready ]] && return
    exec >"$environment.log" 2>&1
    rm -rf "$environment"
    "$base" - "$environment" <<'PYTHON'
import sys
import sysconfig
import venv
from pathlib import Path

target = sys.argv[1]
venv.EnvBuilder(system_site_packages=True, symlinks=True).create(target)
if sys.prefix != sys.base_prefix:
    # A virtual environment that is created in another one does not see its packages.
    place = sysconfig.get_path("purelib", vars={"base": target, "platbase": target})
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(place, "node.pth").write_text(line, encoding="utf-8")
PYTHON
    cat >"$environment/requirements.txt" <<'END OF REQUIREMENTS'
--index-url https://${INDEX_TOKEN}@packages.example/simple
--only-binary :all:
tiny-speech==1.2.3
END OF REQUIREMENTS
    local python=$environment/bin/python
    if [[ $tool == pip ]]; then
        "$python" -m pip install "${options[@]}" --requirement "$environment/requirements.txt"
    else
        local uv=(uv)
        if ! command -v uv >/dev/null; then
            "$python" -m uv --version || "$python" -m pip install --disable-pip-version-check --no-input uv
            uv=("$python" -m uv)
        fi
        "${uv[@]}" pip install --python "$python" "${options[@]}" --requirement "$environment/requirements.txt"
    fi
    local version='import importlib.metadata; print(importlib.metadata.version("ray"))'
    if [[ $("$base" -c "$version") != $("$python" -c "$version") ]]; then
        echo "the requirements bring another Ray than the cluster's: remove ray from them, or use the cluster's version"
        return 1
    fi
    touch "$environment/.ready"
}

if [[ ${1-} == --install ]]; then
    install "$2" "$3"
    exit
fi
(($#)) || set -- python task.py

# A command that already runs in the environment needs nothing more.
if [[ ${RAYSCRIBE_ENVIRONMENT-} != */"$key"-* ]]; then
    for tool_needed in flock setsid sha256sum; do
        command -v "$tool_needed" >/dev/null || fail "$tool_needed is not on this node: install util-linux and coreutils"
    done
    base=$(command -v python || command -v python3) || fail "no python in PATH: start Ray with its Python's bin in PATH"
    identity=$("$base" -c 'import importlib.metadata as m, sys; print(sys.version, sys.prefix, m.version("ray"))') ||
        fail "$base has no Ray: start Ray with the bin of its own Python first in PATH"
    folder=${RAYSCRIBE_ENVIRONMENTS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rayscribe/environments}
    mkdir -p "$folder" || fail "$folder cannot be created: set RAYSCRIBE_ENVIRONMENTS to a folder that every node can write"
    hash=$(sha256sum <<<"$identity")
    environment=$folder/$key-${hash:0:16}
    if [[ ! -e $environment/.ready ]]; then
        echo "install_and_run.sh: installing the job's packages, see $environment.log" >&2
        # In a session of its own, since Ray kills a worker that has not started after a minute and starts another. The
        # installation continues, and the next worker finds it complete.
        if ! setsid bash "$0" --install "$environment" "$base"; then
            tail -n 40 "$environment.log" >&2 || true
            fail "the job's packages could not be installed on $(uname -n); above is the end of $environment.log"
        fi
    fi
    export RAYSCRIBE_ENVIRONMENT=$environment VIRTUAL_ENV=$environment PATH=$environment/bin:$PATH
    export RAYSCRIBE_PY_EXECUTABLE="bash install_and_run.sh python"
fi
exec "$@"
