"""Writes the folder of a Flower app that runs one specification, ready for `flwr run`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import BadInput
from asfedbridge.runs import NODES, Spec, write_toml

STATES = NODES  # for runs with all clients on one machine
# Run configuration: `flwr run --run-config 'key=value ...'`.
CONFIG: dict[str, Any] = {
    "out": "run",  # the run folder, on the server
    "resume": False,
    "from-round": 0,  # with resume: go back to the checkpoint after this many rounds; nodes need allow-rollback
    "data-root": "",  # on the server; a node has its own in its node config
    "min-clients": 0,  # usable uploads that a round needs; 0: half of its participants, at least two; -1: all
    "round-timeout": 3600.0,  # seconds a client has for its turn
    "patience": 600.0,  # seconds to retry clients that did not reply, if there are too few uploads
    "gathering": 120.0,  # seconds to wait for nodes before the first round
    "imports": "",  # plugin files, separated by ':', readable by all processes; others are in the app
    "callbacks": "",  # added on the server, as with `run --callback`, separated by ';'
    "report-to": "",  # folder for progress and outcome, read by `asfedbridge run`
}
# In the folder `report-to`: the server's messages, its outcome and its process id.
PROGRESS, OUTCOME, PROCESS = "progress.txt", "outcome.json", "process"
PACKAGE, MODELS = "bridge_app", "models"  # in the app's folder; in its package: the user's plugin files
MODULE = '''"""Entry point of the Flower app: runs the specification next to this file."""

from pathlib import Path

from asfedbridge.deploy.apps import make_apps
from asfedbridge.report.progress import Progress

apps = make_apps(Path(__file__).with_name("spec.toml"), Progress)
server = apps[0]
client = apps[1]
'''
PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bridge-app"
version = "1.0.0"
description = "A federation of asfedbridge"
license = "Apache-2.0"
dependencies = []  # keep it empty: machines have asfedbridge already, nothing is installed at run time

[tool.flwr.app]
publisher = "asfedbridge"

[tool.flwr.app.components]
serverapp = "bridge_app:server"
clientapp = "bridge_app:client"

[tool.flwr.app.config]
"""

CERTIFICATES = """#!/bin/sh
# Creates a private certificate authority, the SuperLink's certificate and its secret: certificates.sh HOST [HOST ...]
# HOST: every name or address by which nodes reach the SuperLink. Only ca.crt goes to the nodes.
set -eu
[ $# -ge 1 ] || { echo "usage: certificates.sh HOST [HOST ...]" >&2; exit 2; }
umask 077
mkdir -p certificates
cd certificates
names=""
for host in "$@"; do
    case "$host" in
        *[!0-9.]*) case "$host" in *:*) kind=IP ;; *) kind=DNS ;; esac ;;
        *) kind=IP ;;
    esac
    names="$names${names:+,}$kind:$host"
done
new="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $new -days 3650 -keyout ca.key -out ca.crt -subj "/CN=asfedbridge federation" \\
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
openssl req $new -keyout server.key -out server.csr -subj "/CN=$1"
printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth\\nbasicConstraints=CA:FALSE\\n' "$names" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -out server.pem -extfile server.ext
rm server.csr server.ext
head -c 32 /dev/urandom > superexec.secret
chmod 644 ca.crt server.pem
echo "certificates/: ca.crt (for everybody), server.pem, server.key and superexec.secret (for the SuperLink),"
echo "ca.key (keep it offline)"
"""
STEPS = """# A federation of asfedbridge over Flower

- `app/`: the argument of `flwr run`. `app/bridge_app/spec.toml` is the specification; `app/pyproject.toml` has the
  server's settings (`out`, `min-clients`, `round-timeout`, ...) under `[tool.flwr.app.config]`.
- `certificates.sh`: creates the certificates of the SuperLink.

The steps are on the page "Deploy on real machines" of the documentation (docs/deployment.md in the repository).
"""


def write_app(folder: Path, spec: Spec, config: Mapping[str, Any] | None = None) -> None:
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    values = CONFIG | dict(config or {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    (folder / "pyproject.toml").write_text(PROJECT + "\n".join(lines) + "\n", encoding="utf-8")
    (package / "__init__.py").write_text(MODULE, encoding="utf-8")
    (package / "spec.toml").write_text(write_toml(spec), encoding="utf-8")


def check_network(spec: Spec) -> None:
    """Refuse settings that need clients' states, features or gradients, which never leave a node."""
    for field, what in (("snapshot_every", "states"), ("diagnose_every", "features and gradients")):
        if value := getattr(spec, field):
            raise BadInput(
                f"{field}={value}: the {what} of clients do not leave their nodes; "
                f"set it to 0, or use engine=local or engine=pool"
            )


def write_deployment(folder: Path, spec: Spec, models: Sequence[str] = ()) -> None:
    """Write a folder for a federation on real machines; the plugin files ``models`` go to every node with the app."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: already exists; give a new folder")
    check_network(spec)
    write_app(folder / "app", spec)
    for number, file in enumerate(models):
        place = folder / "app" / PACKAGE / MODELS / f"{number}_{Path(file).name}"
        place.parent.mkdir(exist_ok=True)
        shutil.copy(file, place)
    script = folder / "certificates.sh"
    script.write_text(CERTIFICATES, encoding="utf-8")
    script.chmod(0o755)
    (folder / "README.md").write_text(STEPS, encoding="utf-8")
