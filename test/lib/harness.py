"""Common to the rigs of all test parts: outcomes, waiting and ports. Standard library only."""

import random
import socket
import time

SKIP = 4  # the exit status of a test that could not run here; ctest counts it as skipped


class Failed(AssertionError):
    """A test's finding."""


class Skipped(Exception):
    """Why a test cannot run here."""


def wait_for(what, condition, seconds=15, pause=0.02, ignored=(), while_waiting=None):
    """The first true value of `condition`; Failed after `seconds`, which decide only how long a failure takes.

    Exceptions of the types in `ignored` count as false. `while_waiting` is called between the tries: it may raise where
    waiting has become senseless.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            if value := condition():
                return value
        except ignored:
            pass
        if while_waiting:
            while_waiting()
        if time.monotonic() > end:
            raise Failed(f"not seen within {seconds} s: {what}")
        time.sleep(pause)


def free_port():
    """A port below the kernel's range for outgoing connections, so that no connection takes it first."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
