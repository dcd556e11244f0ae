"""Runs Python scripts as ``python script.py`` does, but from a process that has loaded torch: seconds less for each.

Every script is the ``__main__`` of a fork of its own. asfedbridge itself is imported anew by each of them.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOADED = """
import sys
sys.path.remove("")
import contextlib, importlib, json, multiprocessing.process, os, types
for name in ("torch", "torch._dynamo", "numba", "scipy.stats", "sklearn.datasets", "safetensors.torch"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
assert not [name for name in sys.modules if name.startswith("asfedbridge")]
script = None
while line := os.read(0, 65536):
    if child := os.fork():
        os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    script, out, err = json.loads(line)
    break
if script:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(os.path.dirname(out))
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    sys.argv = [script]
    sys.path.insert(0, os.path.dirname(script))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    with open(script, encoding="utf-8") as file:
        code = compile(file.read(), script, "exec")
    exec(code, main.__dict__)
"""


@cache
def loaded() -> "subprocess.Popen[bytes]":
    """One for all tests of this process; it ends with it, because its pipe does."""
    more = {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", LOADED],
        cwd="/",
        env=os.environ | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )


def run_script(script: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """In that folder, as its working directory; matplotlib opens no window. Exit code, stdout and stderr."""
    process, out, err = loaded(), folder / ".stdout", folder / ".stderr"
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps([str(script.resolve()), str(out), str(err)]).encode() + b"\n")
    code = process.stdout.readline()
    assert code, "the process that forks scripts ended"
    done = subprocess.CompletedProcess([script.name], int(code), *(file.read_text("utf-8") for file in (out, err)))
    for file in (out, err):
        file.unlink()
    return done
