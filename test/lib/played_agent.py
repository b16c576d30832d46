"""An agent's side of the socket, for tests that send budgets to the hook. The layout is proto/sluice/wire.h."""

import contextlib
import fcntl
import os
import socket
import struct
import threading

PAGE_BYTES = 8192
# Their rows in proto/counters.def.
LIVE_BYTES, FETCHED_BYTES, EVICTED_BYTES, LAUNCHES = 4, 8, 9, 12
FACTOR, LINK_WAIT_NS, TOUCHED_BYTES = 21, 24, 25  # by words: `factor` and the row behind it have half of one each
UNMANAGED_BYTES = 3


class Agent(threading.Thread):
    """A socket; `talk` is called with each peer that connects."""

    def __init__(self, path, talk):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(8)
        self.talk = talk
        self.start()

    def run(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                self.talk(peer)


def frame(kind, body, seq, minor=0):
    return (struct.pack("<IBBHQ", 0x43494C53, 1, minor, kind, seq) + body).ljust(256, b"\0")


def budget_frame(uuid, budget, guaranteed, host, generation, factor=0, granted=None, tokens=0, link=0):
    """`granted`: the bytes of the process's lease; None: the frame of an agent that is older than leases. `link`: its
    share of the link, bytes a second."""
    values = (budget, guaranteed, 0, host, generation, 10**6, 10**6, factor, 2, 1, 0, tokens)
    body = struct.pack("<48sQQQQQIIBBBBB", uuid, *values)
    if granted is None:
        return frame(4, body, generation)
    return frame(4, body + struct.pack("<BBBI4xQQ", 1, 0, 0, 1, granted, link), generation, minor=1)


TOKEN_REQUEST, TOKEN_GRANT = 5, 6


def token_of(message):
    """The GPU that a token message is about."""
    return message[16:64].split(b"\0")[0]


def grant_frame(uuid, number, quantum_ns, lease_ns):
    return frame(TOKEN_GRANT, struct.pack("<48sQQQQQII", uuid, quantum_ns, lease_ns, 0, 0, number, 0, 0), number)


def memory_frame(uuid, request, granted, total, processes):
    return frame(13, struct.pack("<48sQQQQQII", uuid, request, 0, granted, 0, total, processes, 0), 1, minor=1)


def welcome(peer, minor=0, hello=None):
    """Answers HELLO, which `hello` is if it was read; returns the descriptor of the page that the hook was given."""
    hello or peer.recv(256)
    page = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(page, PAGE_BYTES)
    fcntl.fcntl(page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    body = b"test".ljust(32, b"\0") + b"late".ljust(64, b"\0") + struct.pack("<II", 1, 0)
    socket.send_fds(peer, [frame(2, body, 1, minor)], [page])
    return page


def counter(page, row):
    """A counter of the page's first GPU."""
    form = "<I" if row == FACTOR else "<Q"
    return struct.unpack_from(form, os.pread(page, PAGE_BYTES, 0), 64 + 48 + row * 8)[0]
