"""The server's part of a round: check the uploads against each other and aggregate the usable ones."""

from collections.abc import Callable, Mapping, Sequence

from asfedbridge.core import compression, norms
from asfedbridge.core.errors import BadInput, Diverged
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.failures import explain

Clients = Sequence[ClientInfo]


class Server:
    """One round of the server: takes the previous state and individually checked uploads; stores nothing between
    rounds. ``origin`` is the size of the run's initial state; 0: unknown."""

    def __init__(self, method: Method, task: Task, state: Payload, rnd: Round, origin: float = 0.0) -> None:
        self._method, self._task, self._state, self._round = method, task, state, rnd
        self._origin = origin
        # Clipping bounds a client's influence on a private mean; membership must not depend on other clients' data.
        self._most = 0.0 if method.mechanism else task.norm_guard

    def conclude(self, clients: Clients, ups: Mapping[int, Upload]) -> Payload:
        """The next state from all uploads; any problem raises."""
        if self._most:
            for reason in self._outliers(clients, self._ratios(clients, ups)).values():
                raise Diverged(f"{reason}; lower the learning rate, or set norm_guard=0 to disable this check")
        return self._next(clients, ups)

    def conclude_with_usable(self, clients: Clients, ups: Mapping[int, Upload]) -> tuple[Payload, dict[int, str]]:
        """The next state from the usable uploads, and by client why the others were refused."""
        ratios = self._ratios(clients, ups)
        refused = self._outliers(clients, ratios)
        state, failure = self._state, ""

        def works(some: Clients) -> bool:
            nonlocal state, failure
            try:
                state = self._next(sorted(some, key=lambda c: c.id), ups)
            except Exception as error:
                failure = failure or explain(error)
                return False
            return True

        left = sorted((c for c in clients if c.id not in refused), key=lambda c: (ratios.get(c.id, 0.0), c.id))
        usable = {c.id for c in find_usable(left, works)}  # the last successful attempt used exactly these
        for client in left:
            if client.id not in usable:
                refused[client.id] = f"{self._whose(client)}: aggregation with it fails ({failure})"
        return state, refused

    def _next(self, clients: Clients, ups: Mapping[int, Upload]) -> Payload:
        own = {c.id: ups[c.id] for c in clients}
        state = self._method.server_round(self._state, clients, own, self._round)
        if not isinstance(state, Mapping):
            raise BadInput(
                f"method '{self._method.name}': server_round returned {type(state).__name__}, expected the next state"
            )
        # The median comes from the clients, and most of the few drawn for a round may be hostile.
        payloads = [] if self._method.continues else [up.payload for up in own.values() if up.payload]
        what, origin = f"round {self._round.index}", self._origin if self._method.continues else 0.0
        norms.check_state(state, self._state, payloads, self._most, what, origin)
        compression.check_sendable(state, self._task.compress, f"{what}: the server's next state")
        return state

    def _ratios(self, clients: Clients, ups: Mapping[int, Upload]) -> dict[int, float]:
        """Compares the size of each upload with the median of the round."""
        method, sizes = self._method, {}
        for client in clients:
            if up := ups[client.id].payload:
                known = method.compared_with(self._state, client, self._round)
                sizes[client.id] = norms.measure(up, known, method.continues)
        return norms.ratios(sizes)

    def _outliers(self, clients: Clients, ratios: Mapping[int, float]) -> dict[int, str]:
        what = "update" if self._method.continues else "content"
        return {
            c.id: f"{self._whose(c)}: its {what} is {ratios[c.id]:.3g} times as large as the median of the round "
            f"(norm_guard={self._most:g})"
            for c in clients
            if self._most and ratios.get(c.id, 0.0) > self._most
        }

    def _whose(self, client: ClientInfo) -> str:
        return f"upload of {client.label}, round {self._round.index}"


def find_usable(clients: Clients, works: Callable[[Clients], bool]) -> list[ClientInfo]:
    """A largest usable subset of these clients, which are ordered by increasing suspicion.

    Drops the last one, then two, four ... until the rest works, then re-admits the dropped ones by bisection. One
    culprit among n is found in at most 5 + 3 log2(n) attempts, and no other client is dropped.
    """
    kept, count = list(clients), 1
    aside: list[ClientInfo] = []
    while kept and not works(kept):
        kept, aside, count = kept[:-count], kept[-count:] + aside, 2 * count

    def admit(block: Clients) -> None:
        half = len(block) // 2
        for part in (block[:half], block[half:]):
            if part and works([*kept, *part]):
                kept.extend(part)
            elif len(part) > 1:
                admit(part)

    if len(aside) > 1:
        admit(aside)
    return kept
