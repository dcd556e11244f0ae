"""Why a QNN's logits can differ visibly in another runtime: an input that is rounded the other way at a tie."""

from pathlib import Path
from typing import NamedTuple

import onnxruntime
import torch
from tests.export.trained import trained
from torch import Tensor

from asfedbridge.export.loader import Program
from asfedbridge.export.onnx_file import write_onnx
from asfedbridge.export.outcome import compare


class Forced(NamedTuple):
    logits: Tensor
    flipped: int  # values that the other runtime rounded to another level
    distance: float  # of the flipped values from the middle between two levels, in steps, the largest


def force(program: Program, images: Tensor, levels: dict[str, Tensor]) -> Forced:
    """Run the program, but every quantiser returns the given levels: differences do not add up from layer to layer."""
    values, flipped, distance = {"images": images}, 0, 0.0
    for step in program.steps:
        inputs, held = [values[name] for name in step["inputs"]], program.tensors_of(step)
        out = program.operations[step["op"]](*inputs, **held, **step["options"])
        if step["name"] in levels:
            out, ours = levels[step["name"]], out
            other = (ours - out).abs() > held["step"] / 2
            place = (inputs[0] / held["step"])[other].double()
            flipped += int(other.sum())
            distance = max([distance, *(place - place.floor() - 0.5).abs().tolist()])
        values[step["name"]] = out
    return Forced(values["logits"], flipped, distance)


@torch.no_grad()
def test_onnxruntime_differs_at_ties_only(tmp_path: Path) -> None:
    """Given the same levels, logits agree to 1e-5; levels differ only where an input is at a tie within rounding."""
    case = trained("qnn", "resnet18")
    program = case.subject.trace()
    program.outputs += [step["name"] for step in program.steps if step["op"] == "quantise"]
    assert len(program.outputs) > 10
    write_onnx(program, case.images[:1], tmp_path / "watched.onnx", {})
    session = onnxruntime.InferenceSession(tmp_path / "watched.onnx")
    logits, *levels = map(torch.from_numpy, session.run(None, {"images": case.images.numpy()}))
    found = force(program, case.images, dict(zip(program.outputs[1:], levels, strict=True)))
    assert not compare(found.logits, logits).mismatch
    assert found.distance < 1e-4
    assert found.flipped < 1e-4 * sum(level.numel() for level in levels)
