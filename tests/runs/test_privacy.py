"""Epsilon against closed forms, releases that survive a resume, and the error without dp-accounting."""

import json
import math
import sys
from pathlib import Path
from statistics import NormalDist

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.privacy import Mechanism
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.methods.fedproto import FedProto
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.privacy import load_library, spent_epsilon, summarise_privacy
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import RELEASES, read_releases
from asfedbridge.runs.spec import apply_overrides

CASES = [(1.0, 1, 1e-5), (1.0, 100, 1e-5), (5.0, 100, 1e-6), (20.0, 10, 1e-3), (0.7, 3, 1e-5)]


def renyi(noise: float, releases: int, delta: float) -> float:
    """Renyi divergence of order a: releases * a / (2 noise^2); to epsilon by Canonne, Kamath and Steinke, 2020."""
    orders = [1 + step / 1000 for step in range(10, 200_000, 7)]
    return min(
        releases * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )


def exact_delta(noise: float, releases: int, epsilon: float) -> float:
    """Balle and Wang, ICML 2018; the composed mechanism is one Gaussian with noise / sqrt(releases)."""
    sigma, cdf = noise / math.sqrt(releases), NormalDist().cdf
    return cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * cdf(-0.5 / sigma - epsilon * sigma)


@pytest.mark.parametrize(("noise", "releases", "delta"), CASES)
def test_epsilon_against_closed_forms(noise: float, releases: int, delta: float) -> None:
    epsilon = spent_epsilon(noise, releases, delta)
    assert epsilon == pytest.approx(renyi(noise, releases, delta), rel=0.02)
    assert exact_delta(noise, releases, epsilon) <= delta  # an upper bound
    assert exact_delta(noise, releases, 0.8 * epsilon) > delta  # and not a loose one


def test_epsilon_is_monotone() -> None:
    by_noise = [spent_epsilon(noise, 10, 1e-5) for noise in (0.5, 1, 2, 4, 8)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_releases = [spent_epsilon(2, releases, 1e-5) for releases in (1, 2, 10, 100)]
    assert by_releases == sorted(by_releases)
    by_delta = [spent_epsilon(2, 10, delta) for delta in (1e-9, 1e-5, 1e-2)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert len({*by_noise}) == len(by_noise)


def test_the_client_with_the_most_releases_counts() -> None:
    method = FedAvg(noise=2.0, clip_update=1.0)
    told = summarise_privacy(method.mechanism, [[0, 1], [1, 2], [1, 3], [0]])
    assert told["releases"] == 3
    assert told["epsilon"] == spent_epsilon(2.0, 3, 1e-5)
    assert summarise_privacy(method.mechanism, [])["epsilon"] == 0


def test_which_specifications_are_private() -> None:
    assert FedAvg(noise=1.0, clip_update=2.0, delta=1e-6).mechanism == Mechanism(1.0, 2.0, "system", 1e-6)
    assert FedAvg(clip_update=1.0).mechanism is None
    assert FedProto().mechanism is None


def test_a_missing_library_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(BadInput, match=r"^method\.noise needs dp-accounting; .*pip install 'asfedbridge\[privacy\]'$"):
        load_library()


def test_releases_survive_a_resume(tmp_path: Path) -> None:
    """A repeated round was released twice; a truncated line was never released."""
    spec = apply_overrides(quickstart("fedavg"), {"method.noise": 1.0, "method.clip_update": 1.0})
    folder = RunFolder(tmp_path / "run", spec, resume=False)
    folder.begin(0)
    folder.add_release([0, 1])
    folder.add_release([2])
    with (folder.path / RELEASES).open("ab") as file:
        file.write(b"\n[0, 1")
    del folder
    again = RunFolder(tmp_path / "run", spec, resume=True)
    again.begin(1)
    again.add_release([2])
    assert read_releases(again.path) == [[0, 1], [2], [2]]
    assert read_releases(tmp_path) == []
    assert json.loads((again.path / RELEASES).read_text().splitlines()[1]) == [0, 1]


@pytest.mark.parametrize("line", [b"{}", b"[0, x]", b"[0, -1]", b'["0"]', b"[0, 1}", b"0, 1", b"[true]", b"\xff"])
def test_an_unreadable_release_is_an_error(tmp_path: Path, line: bytes) -> None:
    """Skipping it would report too small an epsilon."""
    (tmp_path / RELEASES).write_bytes(b"\n[0, 1]\n\n" + line + b"\n\n[2]\n")
    with pytest.raises(BadInput, match=r"releases\.jsonl: .* is damaged"):
        read_releases(tmp_path)


@pytest.mark.parametrize("line", [b"", b"[", b"[0", b"[0,", b"[0, ", b"[0, 12"])
def test_a_truncated_release_is_ignored(tmp_path: Path, line: bytes) -> None:
    (tmp_path / RELEASES).write_bytes(b"\n[0, 1]\n\n" + line + b"\n[2]\n")
    assert read_releases(tmp_path) == [[0, 1], [2]]
