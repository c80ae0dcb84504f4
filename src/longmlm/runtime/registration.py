"""Registration: a process tells the longmlm process that started it, through whatever launcher, which process it is.

The parent listens on a socket whose name its children find in their environment. A child connects when it starts: the
kernel says which process it is, and closes the connection when it ends. So nobody guesses which processes train: a
launcher does not connect, and neither does a fork of a child, such as a loader's worker.
"""

import os
import select
import socket
import struct
from contextlib import suppress

PARENT_VARIABLE = "LONGMLM_PARENT"  # the name of the parent's socket, in the environment of child processes
ADDRESS = "\0longmlm-{}"  # in Linux's abstract namespace, where no file is left behind
CREDENTIALS = "3i"  # of SO_PEERCRED: the process, its user and its group

_connections: list[socket.socket] = []  # a connection closes when nothing refers to it


def has_parent() -> bool:
    """Returns whether a longmlm process started this one; it passes every stop signal on as SIGTERM."""
    return PARENT_VARIABLE in os.environ


def register() -> None:
    """Connects this process to its parent, if it has one on this machine."""
    if has_parent():
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):  # a launcher has started this process on another machine, or the parent has ended
            connection.connect(ADDRESS.format(os.environ[PARENT_VARIABLE]))
        os.register_at_fork(after_in_child=connection.close)
        _connections.append(connection)


class Registry:
    """The processes that have registered with this one: `name` is what they need for it in their environment."""

    def __init__(self) -> None:
        self.name = os.urandom(16).hex()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(ADDRESS.format(self.name))
        self._listener.listen()
        self._listener.setblocking(False)
        self._open: list[socket.socket] = []

    def running(self) -> set[int]:
        """Returns the ids of the processes that have registered and still run."""
        with suppress(BlockingIOError):
            while True:
                self._open.append(self._listener.accept()[0])
        for ended in select.select(self._open, [], [], 0)[0]:  # a child sends nothing: only its end can be read
            self._open.remove(ended)
            ended.close()
        size = struct.calcsize(CREDENTIALS)
        credentials = [child.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size) for child in self._open]
        return {struct.unpack(CREDENTIALS, found)[0] for found in credentials} - {0}  # 0: in another container

    def close(self) -> None:
        """Closes the socket, and the connections of processes that still run."""
        for connection in (self._listener, *self._open):
            connection.close()
