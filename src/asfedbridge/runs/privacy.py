"""What a run with noise has told about any one client, by an accountant: docs/privacy.md says what it means.

The only file that imports dp-accounting, and only for runs that are private.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.privacy import Mechanism


def load_library() -> Any:
    """dp-accounting, or one line that says how to get it."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise BadInput(
            "method.noise needs dp-accounting; install it with: pip install 'asfedbridge[privacy]'"
        ) from None
    return dp_accounting


def spent_epsilon(noise: float, releases: int, delta: float) -> float:
    """Of so many Gaussian mechanisms, one after the other, by Renyi divergences (Mironov, CSF 2017).

    Neighbours differ in one client, whose updates are replaced by zero in all rounds. Sampling of clients does not
    count: who is drawn follows from the run's seed, which every participant knows.
    """
    library = load_library()
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(library.GaussianDpEvent(noise), releases)
    return float(accountant.get_epsilon(delta))


def summarise_privacy(mechanism: Mechanism, releases: Iterable[Sequence[int]]) -> dict[str, Any]:
    """For summary.json; the client that was in most releases has the largest epsilon."""
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
