"""Model cards: what was measured is in them, and what was not is not made up."""

import json
import sys
from pathlib import Path

import pytest
from tests.export.trained import digits, trained

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Kind
from asfedbridge.export.writer import find_format, write_export


@pytest.mark.parametrize("kind", ["snn", "qnn"])
def test_a_card_has_accuracy_and_cost(kind: Kind, tmp_path: Path) -> None:
    case = trained(kind, "vgg9")
    images, labels = digits()
    found = write_export(case.subject, tmp_path / "client.safetensors", images[:96], labels[:96])
    names = [file.name for file in found.files]
    assert names == [
        "client.safetensors",
        "client_loader.py",
        "client.safetensors.json",
        "client.safetensors.md",
    ]
    card = json.loads((tmp_path / names[2]).read_text())
    assert card == json.loads(json.dumps(found.card))
    per_class = [share for share in card["measured"]["per_class"].values() if share is not None]
    assert min(per_class) <= card["measured"]["accuracy"] <= max(per_class)
    right = case._replace(images=images[:96]).logits().argmax(dim=1) == labels[:96]
    assert card["measured"]["accuracy"] == pytest.approx(100 * right.float().mean().item())
    cost = card["cost"]
    assert cost["latency_ms"] > 0
    if kind == "snn":
        assert cost["sops"] > 0
        assert cost["energy_uj"] == pytest.approx((cost["flops"] / 2 * 4.6 + cost["sops"] * 0.9) / 1e6)
        assert cost["energy_with_memory_uj"]["total"] > cost["energy_uj"]
        assert cost["equal_qnn"]["bits"] == 2
        assert 0 < cost["equal_qnn"]["rate"] < 1
    else:
        assert cost["energy_uj"] is cost["energy_with_memory_uj"] is None  # four bits have no constant
        assert cost["bitops"] == 16 * cost["low_bit_macs"] > 0
    page = (tmp_path / names[3]).read_text()
    assert "| Effective_ACs |" in page
    assert "It knows ten digits." in page
    assert ("Energy in uJ with memory access" in page) == ("of its neurons fire in a step" in page) == (kind == "snn")


def test_without_images_nothing_is_measured(tmp_path: Path) -> None:
    found = write_export(trained("snn", "vgg9").subject, tmp_path / "client.safetensors")
    assert "measured" not in found.card
    assert found.card["cost"]["sops"] is found.card["cost"]["latency_ms"] is found.card["cost"]["neurobench"] is None
    assert "Not measured with this export" in (tmp_path / "client.safetensors.md").read_text()


@pytest.mark.parametrize(
    ("name", "form", "why"),
    [
        ("client.h5", None, "out=client.h5: unknown suffix; use one of .pt2"),
        ("client.onnx", "nir", "format=nir needs a file name ending in .nir"),
        ("client.onnx", "tflite", "format=tflite: unknown format; use torch, onnx or nir"),
    ],
)
def test_unknown_formats_are_refused(name: str, form: str | None, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        find_format(Path(name), form)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nir", None)
    with pytest.raises(BadInput, match=r"nir needs the package nir; pip install 'asfedbridge\[export\]'"):
        find_format(Path("client.nir"))
