"""Clients that hold a server's threads and buffers: slow ones, silent ones, ones that read no answer."""

import contextlib
import http.client
import os
import socket
import ssl
import threading
import time

CLIENTS = 200
# Seconds that kubelet waits for a probe. A sanitizer (scripts/sanitize) makes all slower.
LIMIT = 5 if os.environ.keys() & {"TSAN_OPTIONS", "ASAN_OPTIONS"} else 1
# The probe comes from 127.0.0.1. A pod on the host's network has the node's own address, as kubelet.
NEIGHBOUR, SAME = "127.0.0.2", "127.0.0.1"
# Silent ones (without a handshake), slow headers, slow bodies, and requests whose answers stay unread.
FIRST = (b"", b"GET /metrics HTTP/1.1\r\nX: ", b"POST /filter HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", b"")


class SlowClients:
    """Each half of them has one address. A connection that the server ends is opened again at once."""

    def __init__(self, port, page, tls=False, kinds=(0, 1, 2, 3)):
        self.port, self.page, self.tls, self.kinds, self.held = port, page, tls, kinds, {}
        self.stopping = threading.Event()
        for i in range(CLIENTS):
            self.open(i)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def kind(self, i):
        return self.kinds[i // 2 % len(self.kinds)]

    def open(self, i):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.bind((SAME if i % 2 else NEIGHBOUR, 0))
        s.settimeout(0.5)
        with contextlib.suppress(OSError):
            s.connect(("127.0.0.1", self.port))
            kind = self.kind(i)
            if self.tls and kind != 0:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                s = context.wrap_socket(s)
            s.setblocking(False)
            if FIRST[kind]:
                s.send(FIRST[kind])
        if i in self.held:
            self.held[i].close()
        self.held[i] = s

    def step(self, i):
        s, kind = self.held[i], self.kind(i)
        try:
            if kind == 3:
                s.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % self.page * 20)
                return
            if kind != 0:
                s.send(b"x")
            if not s.recv(1, *(() if isinstance(s, ssl.SSLSocket) else (socket.MSG_PEEK,))):
                self.open(i)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.open(i)

    def run(self):
        while not self.stopping.is_set():
            for i in range(CLIENTS):
                self.step(i)
                if self.stopping.is_set():
                    break
            time.sleep(0.2)

    def close(self):
        self.stopping.set()
        self.thread.join()
        for s in self.held.values():
            s.close()


@contextlib.contextmanager
def long_bodies(port):
    """Eight clients that send bodies of 63 MiB as fast as the server reads, one after another."""
    stopping, piece = threading.Event(), b"x" * (1 << 20)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def send():
        while not stopping.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as plain:
                s = context.wrap_socket(plain)
                s.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (len(piece) * 63))
                for _ in range(63):
                    s.sendall(piece)
                    if stopping.is_set():
                        break

    threads = [threading.Thread(target=send, daemon=True) for _ in range(8)]
    for t in threads:
        t.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        stopping.set()
        for t in threads:
            t.join()


def probe(port, tls, accepted=(200,)):
    """Seconds until /healthz is answered, by a connection of its own as kubelet's."""
    begin = time.monotonic()
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=LIMIT, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    connection.request("GET", "/healthz", headers={"Connection": "close"})
    answer = connection.getresponse()
    assert answer.status in accepted, (answer.status, answer.read())
    connection.close()
    return time.monotonic() - begin


def withstands(port, page=b"/metrics", tls=False, kinds=(0, 1, 2, 3), accepted=(200,)):
    probe(port, tls)
    slow = SlowClients(port, page, tls, kinds)
    took = []
    try:
        time.sleep(0.5)
        for _ in range(20):
            took.append(probe(port, tls, accepted))
            time.sleep(0.3)
    finally:
        slow.close()
    print(f"        /healthz beside {CLIENTS} slow clients: {max(took) * 1e3:.0f} ms at most")
    assert max(took) < LIMIT, took
