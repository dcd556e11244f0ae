"""One process that has torch, but no asfedbridge, and runs exported files: each in a fork, which has seen no other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# The parent has loaded a .pt2 of its own, because torch imports most of what that needs only then.
SCRIPT = """
import sys
sys.modules["asfedbridge"] = None  # importing it fails, wherever it is installed
import io, os, traceback
import numpy, safetensors, torch
torch.set_num_threads(1)
file = io.BytesIO()
torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), file)
file.seek(0)
torch.export.load(file).module()(torch.ones(2))

def run(folder, name):
    os.chdir(folder)
    images = torch.from_numpy(numpy.load("images.npy"))
    if name.endswith(".pt2"):
        network = torch.export.load(name).module()
    else:
        sys.path.insert(0, folder)
        from client_loader import load
        network = load(name)
    with torch.no_grad():
        both = torch.cat([network(images), network(images[:1])])  # any number of images
    numpy.save("logits.npy", both.numpy())

for path in map(str.strip, sys.stdin):
    if not (child := os.fork()):
        try:
            run(*os.path.split(path))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Alone:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def run(self, path: Path, images: Tensor) -> Tensor:
        """Logits of the images, then those of the first image alone; the file is called client.*."""
        assert self.process.stdin
        assert self.process.stdout
        np.save(path.parent / "images.npy", images.numpy())
        print(path, file=self.process.stdin, flush=True)
        code = self.process.stdout.readline().strip()
        assert code == "0", f"{path}: {code or 'the process ended'}; its traceback is on stderr"
        return torch.from_numpy(np.load(path.parent / "logits.npy"))


@contextmanager
def started() -> Iterator[Alone]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(
        command, cwd="/", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Alone(process)
        process.communicate(timeout=60)
    assert process.returncode == 0
