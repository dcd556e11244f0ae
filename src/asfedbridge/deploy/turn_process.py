"""Runs the turns of one run, one after the other, in a process that keeps data and client in memory (`node.Memory`).

The process is forked from a node's task server for the first turn of a run. It receives the tokens of later turns over
a pair of sockets that only these two processes have. It ends if a turn fails, if no turn comes for a while, if another
run begins, and with the task server; the next turn then gets a new process, which reads everything from files.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from asfedbridge.deploy.processes import fork

FREE, TAKEN = b"free", b"taken"
PATIENCE = 10.0  # seconds for the end of the last turn, and then for the confirmation of the next


class TurnProcess:
    """``take_turn`` runs in the process, with the token of a turn. It returns the seconds to wait for the next one; 0
    ends the process."""

    def __init__(self, take_turn: Callable[[str], float], patience: float = PATIENCE) -> None:
        self._take_turn, self._patience = take_turn, patience
        self._run, self._process = -1, 0
        self._connection: Connection | None = None

    def start(self, run: int, token: str) -> None:
        """Start a turn: in the process of the last one, or in a new one."""
        if run == self._run and self._give(token):
            return
        self.end()
        self._connection, theirs = Pipe()
        self._process, self._run = fork(lambda: self._serve(theirs, token)), run
        theirs.close()

    def end(self) -> None:
        """End the process; one that is in a turn ends after it."""
        if self._connection:
            self._connection.close()
            self._connection = None

    def _give(self, token: str) -> bool:
        """Whether the process has taken the turn; if not, it never will."""
        connection = self._connection
        if connection is None:
            return False
        with suppress(EOFError, OSError):  # it has ended
            if not connection.poll(self._patience):  # it hangs in its last turn, which a timer will end
                return False
            connection.recv_bytes()
            connection.send_bytes(token.encode())
            if connection.poll(self._patience):
                return connection.recv_bytes() == TAKEN
            os.kill(self._process, signal.SIGKILL)  # stopped, for example: it must not wake up with this token
        return False

    def _serve(self, connection: Connection, token: str) -> None:
        if self._connection:
            self._connection.close()  # the task server's end: its closing must be noticed
        while (idle := self._take_turn(token)) > 0:
            connection.send_bytes(FREE)
            if not connection.poll(idle):
                return
            token = connection.recv_bytes().decode()
            connection.send_bytes(TAKEN)
