#!/usr/bin/env bash
# Runs a command with the job's packages; the first process on a node installs them, once.
#
#   bash install_and_run.sh                                         runs python task.py
#   bash install_and_run.sh python task.py --config recipe.yaml
#
# They go into a virtual environment next to the node's own packages, in RAYSCRIBE_ENVIRONMENTS or else in
# ~/.cache/rayscribe/environments, named by a hash of the requirements and of the node's Python.
set -euo pipefail

key=d085c0b68bbf4a6f
tool=pip
options=(--disable-pip-version-check --no-input)

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
absl-py==2.5.1
accelerate==1.15.0
aiohappyeyeballs==2.7.1
aiohttp==3.14.5
aiohttp-cors==0.8.1
aiosignal==1.4.0
alembic==1.20.1
annotated-doc==0.0.7
annotated-types==0.8.0
anyio==4.16.0
attrs==26.1.0
av==18.1.0
boto3==1.44.5
botocore==1.44.5
certifi==2026.10.18
cffi==2.1.1
charset-normalizer==3.5.2
click==8.5.1
colorful==0.5.8
cryptography==50.0.2
datasets==5.2.0
deepspeed==0.19.8
dill==0.4.1
distlib==0.4.4
einops==0.8.2
espeakng-loader==0.2.4
evaluate==0.4.6
fastapi==0.165.0
filelock==4.2.11
flashlight-text==0.0.7; python_version < "3.13"
frozenlist==1.8.0
fsspec==2026.9.0
google-api-core==2.44.0
google-auth==2.62.2
googleapis-common-protos==1.76.0
grpcio==1.85.1
h11==0.16.0
hf-xet==1.8.0
hjson==3.1.0
httpcore==1.0.9
httpcore2==2.16.2
httpx==0.28.1
httpx2==2.16.2
huggingface-hub==2.4.0
idna==3.20
importlib-metadata==8.9.0
indexed-gzip==1.10.3
indic-numtowords==1.1.0
jinja2==3.1.6
jiwer==4.0.0
jmespath==1.1.0
jsonschema==4.26.0
jsonschema-specifications==2025.9.1
langcodes==3.5.1
language-data==1.4.0
mako==1.4.3
marisa-trie==1.4.1
markdown==3.11.3
markdown-it-py==4.3.0
markupsafe==3.0.4
mdurl==0.1.2
more-itertools==11.2.1
mpmath==1.3.0
msgpack==1.2.4
multidict==7.2.1
multiprocess==0.70.19
networkx==3.6.1
ninja==1.13.2
numpy==2.4.6
obstore==0.12.1
opencensus==0.11.4
opencensus-context==0.1.3
opentelemetry-api==1.45.2
opentelemetry-exporter-prometheus==0.66b2
opentelemetry-proto==1.45.2
opentelemetry-sdk==1.45.2
opentelemetry-semantic-conventions==0.66b2
packaging==26.3
pandas==3.1.1
peft==0.21.2
pillow==13.0.0
platformdirs==4.14.5
prometheus-client==0.26.0
propcache==0.5.4
proto-plus==1.29.0
protobuf==7.36.2
psutil==7.2.2
psycopg==3.3.9
psycopg-binary==3.3.9
py-cpuinfo==9.0.0
py-spy==0.4.3
py3langid==0.4.0
pyarrow==26.0.1
pyasn1==0.6.5
pyasn1-modules==0.4.2
pycparser==3.12
pydantic==2.14.3
pydantic-core==2.50.4
pygal==3.1.3
pygments==2.21.0
python-dateutil==2.9.0.post0
python-discovery==1.9.5
pyyaml==6.0.3
rapidfuzz==3.14.6
referencing==0.37.0
regex==2026.11.15
requests==2.34.2
rich==15.0.0
rpds-py==2026.9.1
s3transfer==0.19.3
safetensors==0.8.0
sentencepiece==0.2.3
shellingham==1.5.4
six==1.17.0
smart-open==9.0.2
soundfile==0.14.0
soxr==1.1.0
sqlalchemy==2.1.9
starlette==1.10.0
sympy==1.14.0
tensorboard==2.21.0
tensorboard-data-server==0.7.2
tensorboardx==2.6.5
text2num==3.1.0
tokenizers==0.23.3
torch==2.13.0
tqdm==4.70.1
transformers==5.23.0
truststore==0.10.5
typer==0.29.2
typing-extensions==4.16.0
typing-inspection==0.4.5
urllib3==2.8.0
uvicorn==0.54.0
virtualenv==21.15.7
webrtcvad-wheels==2.0.14.post1
werkzeug==3.1.9
whisper-normalizer==0.1.15
wrapt==2.5.2
xxhash==4.1.0
yarl==1.25.1
zipp==4.1.2
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
