"""The folder of a Flower app that plays one specification: `flwr run` takes it as it is."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import BadInput
from asfedbridge.runs import Spec, write_toml

STATES = "nodes"  # in the run folder, where all clients are on one machine: private states, a folder for each client
# Run configuration: `flwr run --run-config 'key=value ...'`.
CONFIG: dict[str, Any] = {
    "out": "run",  # the run folder, on the server
    "resume": False,
    "data-root": "",  # on the server; a node has its own in its node config
    "min-clients": 0,  # usable uploads that make a round; 0: those of all its participants
    "round-timeout": 3600.0,  # seconds a client has for its turn
    "patience": 600.0,  # seconds to go on asking when there are too few; 0: the run ends
    "gathering": 120.0,  # seconds that nodes have to come before the first round
    "imports": "",  # files with models, separated by ':', that all processes can read; others are in the app
    "callbacks": "",  # that the server adds, as of `run --callback`, separated by ';'
    "report-to": "",  # a folder for progress and outcome, where `asfedbridge run` reads them
}
# In the folder `report-to`: what the server says, how it ended, and its process.
PROGRESS, OUTCOME, PROCESS = "progress.txt", "outcome.json", "process"
PACKAGE, MODELS = "bridge_app", "models"  # in the app's folder; in the package: files with models of the user's own
MODULE = '''"""Flower's way into asfedbridge: it plays the specification beside this file."""

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
dependencies = []  # keep it empty: nothing is installed at run time, machines have asfedbridge already

[tool.flwr.app]
publisher = "asfedbridge"

[tool.flwr.app.components]
serverapp = "bridge_app:server"
clientapp = "bridge_app:client"

[tool.flwr.app.config]
"""

CERTIFICATES = """#!/bin/sh
# A certificate authority of your own and the SuperLink's certificate: certificates.sh HOST [HOST ...]
# HOST is each name or address by which nodes reach the SuperLink. Only ca.crt goes to the nodes.
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
chmod 644 ca.crt server.pem
echo "certificates/: ca.crt (for everybody), server.pem and server.key (for the SuperLink), ca.key (keep it offline)"
"""
STEPS = """# A federation of asfedbridge over Flower

- `app/`: what `flwr run` takes. `app/bridge_app/spec.toml` is the specification, `app/pyproject.toml` has the settings
  of the server (`out`, `min-clients`, `round-timeout`, ...) under `[tool.flwr.app.config]`.
- `certificates.sh`: makes the certificates of the SuperLink.

What to do with them, step by step: docs/deployment.md of asfedbridge.
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
    """Refuse what would look into clients: their states, features and gradients never leave a node."""
    for field, what in (("snapshot_every", "states"), ("diagnose_every", "features and gradients")):
        if value := getattr(spec, field):
            raise BadInput(
                f"{field}={value}: the {what} of clients do not leave their nodes; "
                f"set it to 0, or use --engine local or pool"
            )


def write_deployment(folder: Path, spec: Spec, models: Sequence[str] = ()) -> None:
    """A folder to begin a federation of real machines with; files with ``models`` go to every node with the app."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: there is something already; give a new folder")
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
