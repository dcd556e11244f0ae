"""The privacy loss (epsilon, delta) of a differentially private run. docs/privacy.md explains the guarantee.

The only file that imports dp-accounting, and only for private runs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.privacy import Mechanism


def load_library() -> Any:
    """dp-accounting; BadInput says how to install it."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise BadInput(
            "method.noise needs dp-accounting; install it with: pip install 'asfedbridge[privacy]'"
        ) from None
    return dp_accounting


def spent_epsilon(noise: float, releases: int, delta: float) -> float:
    """Epsilon of ``releases`` composed Gaussian mechanisms, by Renyi differential privacy (Mironov, CSF 2017).

    Neighbours differ in one client, whose updates are replaced by zero in all rounds. There is no amplification by
    sampling: the run's seed, which every participant knows, determines the clients of a round.
    """
    library = load_library()
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(library.GaussianDpEvent(noise), releases)
    return float(accountant.get_epsilon(delta))


def summarise_privacy(mechanism: Mechanism, releases: Iterable[Sequence[int]]) -> dict[str, Any]:
    """The entry of summary.json. Epsilon is that of the client with the most releases, which is the largest."""
    most = max(Counter(client for clients in releases for client in clients).values(), default=0)
    return {
        "epsilon": spent_epsilon(mechanism.noise, most, mechanism.delta) if most else 0.0,
        "delta": mechanism.delta,
        "releases": most,
        "noise": mechanism.noise,
        "clip_update": mechanism.clip_update,
        "noise_source": mechanism.source,
        "protects": "one client, its updates replaced by zero",
    }
