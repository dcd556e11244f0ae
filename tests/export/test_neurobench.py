"""Our counts beside those of the package neurobench."""

from typing import Any

import nir
import pytest
import torch
from tests.export.trained import Trained, make_shard, normalised, trained

from asfedbridge.analysis.costs import measured_cost
from asfedbridge.analysis.firing import firing_rates
from asfedbridge.core.client import Client
from asfedbridge.core.task import Kind
from asfedbridge.export.neurobench import equal_qnn, measure
from asfedbridge.export.nir_file import as_frames, write_nir
from asfedbridge.export.simulators import run_snntorch
from asfedbridge.kernels.dispatch import use_path
from asfedbridge.models.neuron import Spiking


def ask_neurobench(case: Trained) -> dict[str, Any]:
    models = pytest.importorskip("neurobench.models")
    static = pytest.importorskip("neurobench.metrics.static")
    workload = pytest.importorskip("neurobench.metrics.workload")
    model = models.TorchModel(case.subject.network)
    model.add_activation_module(Spiking)
    model.register_hooks()
    x = normalised(case.images, case.subject)
    with use_path("torch"), torch.no_grad():
        answer = model(x)
        found = {
            "ConnectionSparsity": static.ConnectionSparsity()(model),
            "ActivationSparsity": workload.ActivationSparsity()(model, answer, (x, case.labels)),
            "SynapticOperations": workload.SynapticOperations()(model, answer, (x, case.labels)),
        }
    model.cleanup_hooks()
    program = models.TorchModel(case.subject.trace())
    return found | {"Footprint": static.Footprint()(program)}


@pytest.mark.parametrize(("kind", "model"), [("snn", "resnet18"), ("ann", "resnet18")])
def test_counts_agree_with_neurobench(kind: Kind, model: str) -> None:
    case = trained(kind, model)
    theirs = ask_neurobench(case)
    ours = measure(case.subject.trace(), case.images).metrics
    assert ours["Footprint"] == theirs["Footprint"]
    assert ours["ConnectionSparsity"] == pytest.approx(theirs["ConnectionSparsity"], abs=1e-4)  # theirs is rounded
    assert ours["SynapticOperations"] == pytest.approx(theirs["SynapticOperations"])
    assert (ours["SynapticOperations"]["Effective_ACs"] > 0) == (kind == "snn")
    if kind == "snn":  # an ANN's activations are no modules that neurobench knows
        assert ours["ActivationSparsity"] == pytest.approx(theirs["ActivationSparsity"])
        assert 0.3 < ours["ActivationSparsity"] < 1


def test_sops_are_those_of_the_cost_tables() -> None:
    case = trained("snn", "resnet18")
    shard = make_shard(case.images, case.labels, case.subject)
    client = Client(case.subject.info, case.subject.task, case.subject.network, shard)
    batches = shard.test_batches(len(case.images))
    expected = measured_cost([firing_rates(client, batches)], [len(case.images)])
    found = measure(case.subject.trace(), case.images)
    assert found.sops == pytest.approx(expected.sops)
    assert found.rate is not None
    assert expected.sops / expected.spiking_macs < found.rate < 1  # at an edge, a spike reaches fewer weights


def test_membrane_updates_agree_with_neurobench(tmp_path: Any) -> None:
    """NeuroBench reads the membranes of snnTorch, so it is given our network as snnTorch imports it."""
    snntorch = pytest.importorskip("snntorch")
    hooks = pytest.importorskip("neurobench.hooks.neuron")
    workload = pytest.importorskip("neurobench.metrics.workload")
    case = trained("snn", "resnet18")
    program = case.subject.trace()
    write_nir(program, case.subject.shape, tmp_path / "client.nir", "client 0", "{}")
    image = case.images[:1]
    watched: list[Any] = []
    first = snntorch.Leaky.__init__

    class Model:
        activation_hooks = watched

    def note(layer: Any, *args: Any, **options: Any) -> None:
        first(layer, *args, **options)
        watched.append(hooks.NeuronHook(layer))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snntorch.Leaky, "__init__", note)
        with torch.no_grad():
            run_snntorch(nir.read(tmp_path / "client.nir"), as_frames(program, image))
    assert len(watched) == sum(step["op"] == "lif" for step in program.steps)
    theirs = workload.MembraneUpdates()(Model(), None, (image, None))
    ours = measure(program, image).metrics["MembraneUpdates"]
    assert ours == pytest.approx(theirs, rel=1e-3)  # in float32, a membrane may differ from the last one by rounding
    assert ours > 0


@pytest.mark.parametrize(("steps", "bits"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (15, 4)])
def test_the_qnn_to_compare_with(steps: int, bits: int) -> None:
    found = equal_qnn(steps)
    assert found["bits"] == bits
    arithmetic, memory = found["rate_arithmetic"], found["rate_with_memory"]
    assert arithmetic == pytest.approx(min(1, (0.2 * bits / 8 + 0.03) / (steps * 0.03)))
    assert memory == pytest.approx(min(1, (0.2 * bits / 8 + 0.03 + 2.5) / (steps * 2.53)))
