"""Runs an exported file in its target runtimes on real images and compares its logits with the network's."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.export.loader import load
from asfedbridge.export.outcome import Outcome, compare
from asfedbridge.export.writer import Subject

BLIND = 1e-6  # logits that vary less than this over images ignore them, for example for lack of spikes


@torch.no_grad()
def verify_file(subject: Subject, path: Path, images: Tensor) -> dict[str, Outcome]:
    """Outcomes by runtime. ``images`` are uint8 [N, C, H, W].

    A NIR file is compared with the exported steps in the simulator's precision, other files with the network itself.
    """
    program = subject.trace()
    expected = _logits(subject, program, images)
    blind = len(images) > 1 and expected.std(dim=0).max().item() < BLIND
    note = "all images have the same logits, so this proves little" if blind else ""
    if path.suffix == ".nir":
        from asfedbridge.export.simulators import verify

        found = {
            name: outcome._replace(note=outcome.note or note) for name, outcome in verify(path, program, images).items()
        }
        if all(outcome.difference is None for outcome in found.values()):
            raise BadInput(f"verify: no simulator is installed for {path}; pip install spikingjelly snntorch")
        return found
    name, logits = _run(path, images)
    return {name: compare(logits, expected, note)}


def _run(path: Path, images: Tensor) -> tuple[str, Tensor]:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        return "onnxruntime", torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
    if path.suffix == ".pt2":
        return "torch.export", torch.export.load(path).module()(images)
    return "loader", load(path)(images)


def _logits(subject: Subject, program: Any, images: Tensor) -> Tensor:
    """Logits of the trained network."""
    step = program.steps[0]
    normalised = program.operations[step["op"]](images, **program.tensors_of(step))
    out = subject.network.eval()(normalised)
    logits: Tensor = getattr(out, "logits", out)
    return logits
