"""Trained clients of every kind and family, run from their files where they are to be used.

With ``EXPORT_TABLE=FILE`` in the environment, what was found is appended to that file: docs/export.md shows it.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.export.alone import Alone, started
from tests.export.trained import FAMILIES, KINDS, Trained, digits, normalised, trained

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Kind, Task
from asfedbridge.export.onnx_file import write_onnx
from asfedbridge.export.outcome import Outcome, compare
from asfedbridge.export.simulators import verify
from asfedbridge.export.writer import write_export
from asfedbridge.models.zoo import build_bridge

MATRIX = [(kind, model) for kind in KINDS for model in FAMILIES]
FIRST = {
    ".pt2": ("snn", "vgg9"),
    ".safetensors": ("qnn", "vgg9"),
    ".onnx": ("snn", "vgg9"),
    ".nir": ("snn", "resnet18"),
}


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    with started() as process:
        yield process


def cases(suffix: str) -> list[object]:
    """One case of each format is always run."""
    found = [case for case in MATRIX if suffix != ".nir" or case[0] == "snn"]
    return [pytest.param(*case, marks=[] if case == FIRST[suffix] else pytest.mark.long) for case in found]


def note(suffix: str, runtime: str, kind: str, model: str, outcome: Outcome | None, more: str = "") -> None:
    """One line, fields between tabs: the difference in logits, the largest logit, remarks."""
    if place := os.environ.get("EXPORT_TABLE"):
        ran = outcome is not None and outcome.difference is not None
        numbers = [f"{outcome.difference:.1e}", f"{outcome.largest:.1f}"] if outcome and ran else ["-", "-"]
        with open(place, "a") as file:
            print(suffix, runtime, kind, model, *numbers, more, sep="\t", file=file)


@pytest.mark.parametrize(("kind", "model"), cases(".pt2"))
def test_pt2_runs_in_torch_alone(kind: Kind, model: str, alone: Alone, tmp_path: Path) -> None:
    check_alone(kind, model, alone, tmp_path / "client.pt2")


@pytest.mark.parametrize(("kind", "model"), cases(".safetensors"))
def test_safetensors_run_with_their_loader_alone(kind: Kind, model: str, alone: Alone, tmp_path: Path) -> None:
    check_alone(kind, model, alone, tmp_path / "client.safetensors")


def check_alone(kind: Kind, model: str, alone: Alone, path: Path) -> None:
    case = trained(kind, model)
    write_export(case.subject, path)
    logits = alone.run(path, case.images)
    outcome = compare(logits[:-1], case.logits())
    note(path.suffix, "torch", kind, model, outcome)
    assert not outcome.mismatch
    assert not compare(logits[-1], logits[0]).mismatch


@pytest.mark.parametrize(("kind", "model"), cases(".onnx"))
def test_onnx_runs_in_onnxruntime(kind: Kind, model: str, tmp_path: Path) -> None:
    case, path = trained(kind, model), tmp_path / "client.onnx"
    write_export(case.subject, path)
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    assert (entry.name, entry.shape, entry.type) == ("images", ["batch", 1, 8, 8], "tensor(uint8)")
    (logits,) = session.run(["logits"], {"images": case.images.numpy()})
    (one,) = session.run(["logits"], {"images": case.images[:1].numpy()})
    outcome = compare(torch.from_numpy(logits), case.logits())
    spikes = check_spikes(case, tmp_path / "watched.onnx") if kind == "snn" else ""
    note(".onnx", "onnxruntime", kind, model, outcome, spikes)
    assert not outcome.mismatch
    assert not compare(torch.from_numpy(one), case.logits()[:1]).mismatch


def check_spikes(case: Trained, path: Path) -> str:
    """Every neuron's spikes as outputs of the file: those of the network, one by one."""
    program = case.subject.trace()
    program.outputs += [step["name"] for step in program.steps if step["op"] == "lif"]
    write_onnx(program, case.images[:1], path, {})
    found = onnxruntime.InferenceSession(path).run(None, {"images": case.images.numpy()})
    with torch.no_grad():
        expected = program(case.images)
    assert len(found) == len(expected) > 2
    for theirs, ours in zip(found[1:], expected[1:], strict=True):
        assert np.array_equal(theirs, ours.numpy())
    return f"{sum(ours.numel() for ours in expected[1:])} spikes equal"


@pytest.mark.parametrize(("kind", "model"), cases(".nir"))
def test_nir_runs_in_other_simulators(kind: Kind, model: str, tmp_path: Path) -> None:
    check_simulators(trained(kind, model), tmp_path, model)


@pytest.mark.long
@pytest.mark.parametrize("model", ["resnet18", "resnet18-ms"])
def test_nir_of_event_data_reads_frames(model: str, tmp_path: Path) -> None:
    check_simulators(trained("snn", model, frames=3), tmp_path, f"{model} events")


def check_simulators(case: Trained, folder: Path, name: str) -> None:
    path = folder / "client.nir"
    card = write_export(case.subject, path).card
    found = verify(path, case.subject.trace(), case.images)
    for simulator, outcome in found.items():
        note(".nir", simulator, "snn", name, outcome, outcome.note)
    ran = {simulator for simulator, outcome in found.items() if outcome.difference is not None}
    shortcuts = "resnet" in name
    assert ran == {"spikingjelly", "snntorch"} | (set() if shortcuts else {"norse"})
    assert not any(outcome.mismatch for outcome in found.values()), found
    assert card["rewritten"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("frames", "size"), [(3, 8), (1, 128)])
def test_onnx_of_event_frames_and_large_images(kind: Kind, frames: int, size: int, tmp_path: Path) -> None:
    case, path = trained(kind, "resnet18", frames, size), tmp_path / "client.onnx"
    write_export(case.subject, path)
    (logits,) = onnxruntime.InferenceSession(path).run(["logits"], {"images": case.images.numpy()})
    outcome = compare(torch.from_numpy(logits), case.logits())
    note(".onnx", "onnxruntime", kind, f"resnet18 {'events' if frames > 1 else 'large images'}", outcome)
    if (kind, size) == ("qnn", 128):  # sums in another order bring some of the many inputs to the next level
        assert torch.equal(torch.from_numpy(logits).argmax(1), case.logits().argmax(1))
        assert outcome.difference is not None
        assert outcome.difference < 0.02 * outcome.largest
    else:
        assert not outcome.mismatch


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_onnx_of_a_bridge(norm: str, tmp_path: Path) -> None:
    bridge = build_bridge(Task(10, 1, 8, feature_dim=32), 0.25, norm).eval()
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # no norm is the identity
    subject = dataclasses.replace(trained("snn", "resnet18").subject, network=bridge)
    images = digits()[0][:8]
    write_export(subject, tmp_path / "bridge.onnx")
    (logits,) = onnxruntime.InferenceSession(tmp_path / "bridge.onnx").run(["logits"], {"images": images.numpy()})
    with torch.no_grad():
        expected = bridge(normalised(images, subject))
    assert expected.std(dim=0).max() > 1e-3
    assert not compare(torch.from_numpy(logits), expected).mismatch


def test_onnx_of_dorefa(tmp_path: Path) -> None:
    case = trained("qnn", "vgg9", quantiser="dorefa")
    write_export(case.subject, tmp_path / "client.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "client.onnx").run(["logits"], {"images": case.images.numpy()})
    assert not compare(torch.from_numpy(found[0]), case.logits()).mismatch


@pytest.mark.parametrize("kind", ["ann", "bnn", "qnn"])
def test_nir_refuses_a_network_without_spikes(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="cannot be exported to NIR: it has no spiking neuron; use format=onnx or format=torch"
    ):
        write_export(trained(kind, "vgg9").subject, tmp_path / "client.nir")
    assert not list(tmp_path.iterdir())


def test_nir_refuses_the_stem_of_large_images(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pool is a maximum of real values, for which NIR has no node"):
        write_export(trained("snn", "vgg9", size=128).subject, tmp_path / "client.nir")


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt2"])
def test_file_sizes_show_the_bits(suffix: str, tmp_path: Path) -> None:
    """VGG-9 at half width has 440,000 weights in low-bit convolutions."""
    sizes = {}
    for kind in ("ann", "qnn", "bnn"):
        path = tmp_path / f"{kind}{suffix}"
        write_export(trained(kind, "vgg9", width=0.5, steps=3).subject, path)
        sizes[kind] = path.stat().st_size
    note(suffix, "bytes", "vgg9", "half", None, " ".join(f"{kind} {size}" for kind, size in sizes.items()))
    # Of 32 bits 4 and 1; norms, linear layers and, in a .pt2, the graph come on top. ONNX has no type of one bit: INT4.
    assert sizes["qnn"] < sizes["ann"] / 4
    assert sizes["bnn"] < sizes["ann"] / {".onnx": 4, ".pt2": 6, ".safetensors": 15}[suffix]


def test_exports_name_no_file_of_this_machine(tmp_path: Path) -> None:
    import zipfile

    case = trained("snn", "vgg9")
    for suffix in (".pt2", ".onnx"):
        write_export(case.subject, tmp_path / f"client{suffix}")
    with zipfile.ZipFile(tmp_path / "client.pt2") as file:
        content = b"".join(file.read(name) for name in file.namelist()) + (tmp_path / "client.onnx").read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content
