"""The programs of floods, and a process of another tenant that measures their effect on it."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from attacker import TOKEN_RELEASE, TOKEN_REQUEST, hello, token

SAMPLES = 250
# Each is a program of its own: `python3 -c CODE SOCKET`. It prints a line once it is at work.
HEAD = """
import os, socket, struct, sys, time
sys.path[:0] = %r
sys.argv[1:1] = %r
from attacker import *
path = sys.argv[-1]
def open_(say=True):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(20)
    s.connect(path)
    if say: s.send(hello())
    return s
def ready(): print("ready", flush=True)
"""
ATTACKS = {
    "garbage": """
ready()
while True:
    try: s = open_(False); s.send(b"x"); s.close()
    except OSError: time.sleep(0.001)  # the backlog is full
""",
    "attach": """
ready()
while True:
    try: s = open_(); s.recv(256); s.close()
    except OSError: time.sleep(0.001)
""",
    "tokens": """
held = [open_() for _ in range(300)]
request = token(TOKEN_REQUEST, 0)
ready()
while True:
    for s in held:
        try: s.send(request, socket.MSG_DONTWAIT)
        except OSError: pass
""",
    "notices": """
held = [open_() for _ in range(100)]
notice = frame(9, struct.pack("<II", 3, 0) + b"flood")
ready()
while True:
    for s in held:
        try: s.send(notice, socket.MSG_DONTWAIT)
        except OSError: pass
""",
    # Every kind of frame that a process may send, and one that no process does.
    "kinds": """
gpu = (UUID % 0).encode().ljust(48, b"\\0")
held = [open_() for _ in range(300)]
frames = [frame(PONG), frame(MEMORY_REQUEST, gpu + struct.pack("<QQ", 1, 1 << 62)),
          frame(MEMORY_REQUEST, gpu + struct.pack("<QQ", 2, 0)),
          frame(PROCESSES_REQUEST, gpu + struct.pack("<QI", 3, 0)),
          token(TOKEN_REQUEST, 0), token(TOKEN_RELEASE, 0, 7), frame(TOKEN_GRANT, gpu)]
ready()
n = 0
while True:
    for i, s in enumerate(held):
        n += 1
        # One connection at a time ends by the last kind; another takes its place.
        try: s.send(frames[-1 if n % 500 == 0 else n % (len(frames) - 1)], socket.MSG_DONTWAIT)
        except BlockingIOError: pass
        except OSError:
            try: held[i] = open_()
            except OSError: pass
""",
    # Short connections of several processes at once, that call themselves returning, observers, or both.
    "crowd": """
ready()
for _ in range(7):
    if os.fork() == 0: break
n = 0
while os.getppid() != 1:
    n += 1
    try: s = open_(False); s.send(hello(flags=n % 4)); s.send(frame(PONG)); s.close()
    except OSError: time.sleep(0.001)
""",
    # No attack: processes that attached and do nothing.
    "attached": """
held = [open_() for _ in range(1000)]
ready()
time.sleep(600)
""",
    # Of the open metrics, by keep-alive connections of several processes.
    "pages": """
import itertools
ready()
for _ in range(7):
    if os.fork() == 0: break
s = socket.create_connection(("127.0.0.1", int(path)))
for page in itertools.cycle((b"/status.json", b"/metrics", b"/status.json", b"/healthz")):
    s.send(b"GET " + page + b" HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    data = b""
    while b"\\r\\n\\r\\n" not in data: data += s.recv(1 << 20)
    head, body = data.split(b"\\r\\n\\r\\n", 1)
    size = next(x for x in head.lower().split(b"\\r\\n") if x.startswith(b"content-length"))
    left = int(size.split(b":")[1]) - len(body)
    while left > 0: left -= len(s.recv(1 << 20))
""",
    # A thousand attached processes whose pages change all the time: each plan changes all budgets.
    "scribble": """
import array, mmap, random
gpu, pages = (UUID % 0).encode().ljust(48, b"\\0"), []
for _ in range(1000):
    s = open_()
    while True:
        _, control, _, _ = s.recvmsg(256, socket.CMSG_SPACE(4))
        if control: break
    page = array.array("i", control[0][2])[0]
    pages.append((s, mmap.mmap(page, 8192)))
    os.close(page)
ready()
while True:
    for s, view in pages:
        words = [random.choice((0, 1 << random.randrange(64), (1 << 64) - 1)) for _ in range(40)]
        view[64 : 64 + 48 + 320] = gpu + struct.pack("<40Q", *words)
        try: s.recv(256, socket.MSG_DONTWAIT)
        except OSError: pass
    time.sleep(0.005)
""",
    "oversized": """
big = b"x" * 100000
ready()
while True:
    try:
        s = open_(); s.recv(256)
        while True: s.send(big)
    except OSError: s.close()
""",
}


@contextlib.contextmanager
def attack(name, sock):
    code = HEAD % (sys.path, sys.argv[1:3]) + ATTACKS[name]
    # Of lower priority: the agent's turns are judged, not the machine's number of processors.
    p = subprocess.Popen(
        ["nice", "-n", "10", sys.executable, "-c", code, str(sock)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output = p.stdout.readline()
        assert output == "ready\n", (name, output, p.poll())
        yield
        assert p.poll() is None, f"the attack {name} ended"
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()


class Victim:
    """A process of another tenant, with a GPU of its own: its tokens wait for no other process."""

    def __init__(self, sock):
        self.sock = str(sock)
        self.s = self.attach()

    def attach(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(20)
        s.connect(self.sock)
        s.send(hello())
        while struct.unpack_from("<H", s.recv(256), 6)[0] != 4:
            pass
        return s

    def answer(self):
        """Seconds from a request for a token to its grant."""
        begin = time.perf_counter()
        self.s.send(token(TOKEN_REQUEST, 1))
        while True:
            got = self.s.recv(256)
            if struct.unpack_from("<H", got, 6)[0] == 6:
                took = time.perf_counter() - begin
                break
        ident = struct.unpack_from("<Q", got, 16 + 48 + 32)[0]
        self.s.send(token(TOKEN_RELEASE, 1, ident))
        return took

    def p99(self):
        took = []
        for _ in range(SAMPLES):
            took.append(self.answer())
            time.sleep(0.001)
        return sorted(took)[int(0.99 * SAMPLES)]

    def attach_time(self):
        begin = time.perf_counter()
        self.attach().close()
        return time.perf_counter() - begin
