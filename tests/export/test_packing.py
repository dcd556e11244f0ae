"""Low-bit weights as bits, and back."""

import pytest
import torch
from tests.export.trained import trained

from asfedbridge.core.task import Kind
from asfedbridge.export.loader import unpack_codes
from asfedbridge.export.packing import LOW_BIT, pack, weight_codes


@pytest.mark.parametrize("width", range(1, 9))
def test_codes_of_any_width_survive(width: int) -> None:
    codes = torch.randint(0, 2**width, (3, 5, 7), generator=torch.Generator().manual_seed(width))
    packed = pack(codes, width)
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-codes.numel() * width // 8)
    assert torch.equal(unpack_codes(packed, width, codes.numel()).view_as(codes), codes)


@pytest.mark.parametrize(("kind", "bits"), [("qnn", 4), ("bnn", 1)])
def test_codes_have_the_promised_bits(kind: Kind, bits: int) -> None:
    convolutions = [layer for layer in trained(kind, "vgg9").subject.network.modules() if isinstance(layer, LOW_BIT)]
    assert len(convolutions) == 6
    for conv in convolutions:
        found = weight_codes(conv)
        assert found.width == bits
        assert found.codes.min() >= 0
        assert found.codes.max() < 2**bits
        assert len(found.codes.unique()) > 1
