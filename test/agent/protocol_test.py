#!/usr/bin/env python3
"""Frames and files of others: other versions, malformed frames, broken allocations, full disks.

protocol_test.py BIN_DIR TEST_DIR [name...]
"""

import json
import os
import random
import socket
import struct
import subprocess

from agent_rig import BIN, FRAME, GIB, MAGIC, UUID, Skipped, run, test, wait_for


@test()
def other_protocol_versions(a):
    sock = str(a.allocate("one", 50))
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sock)
    s.send(struct.pack("<IBBHQ", MAGIC, 2, 0, 1, 1).ljust(FRAME, b"\0"))
    refuse = s.recv(FRAME)
    assert struct.unpack_from("<H", refuse, 6)[0] == 3 and b"protocol 1.2, the hook 2.0" in refuse, refuse
    assert s.recv(FRAME) == b""
    assert a.allocation("one")["hook_state"] == "refused" and a.events("refused")
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a newer minor version
    s.connect(sock)
    s.send(struct.pack("<IBBHQ", MAGIC, 1, 9, 1, 1).ljust(FRAME, b"\xff"))
    assert struct.unpack_from("<H", s.recv(FRAME), 6)[0] == 2


@test()
def malformed_frames(a):
    """100,000 random, truncated and oversized frames, before and after HELLO, beside one correct process."""
    sock, seed = str(a.allocate("one", 50)), int(os.environ.get("SLUICE_SEED", "20261121"))
    h = a.hook(a.allocate("two", 50))
    rnd = random.Random(seed)
    sent = 0
    while sent < 100000:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(sock)
        s.settimeout(5)
        try:
            if rnd.random() < 0.5:
                s.send(struct.pack("<IBBHQ", MAGIC, 1, 0, 1, 1) + rnd.randbytes(FRAME - 16))
            for _ in range(200):
                kind = rnd.randrange(5)
                body = rnd.randbytes(FRAME)
                if kind == 0:
                    body = body[: rnd.randrange(1, FRAME)]
                elif kind == 1:
                    body = body * rnd.randrange(2, 40)
                elif kind >= 3:
                    body = (
                        struct.pack("<IBBHQ", MAGIC, 1, 0, rnd.choice([5, 8, 9, 11, rnd.randrange(16)]), sent)
                        + body[16:]
                    )
                sent += 1
                s.send(body)
        except OSError:
            pass
        s.close()
    assert a.p.poll() is None, f"the agent ended (seed {seed})"
    a.cli("set", "two", "memory-factor=33")
    wait_for("the correct process is served", lambda: h.last()[8] == "33")
    wait_for("all released", lambda: not a.allocation("one")["processes"])
    assert len(os.listdir(f"/proc/{a.p.pid}/fd")) < 60


@test()
def a_client_that_never_reads_costs_a_few_frames(a):
    sock = str(a.allocate("one", 50))
    h = a.hook(a.allocate("two", 50))
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(sock)
    silent.send(struct.pack("<IBBHQ", MAGIC, 1, 0, 1, 1).ljust(FRAME, b"\0"))
    wait_for("attach", lambda: a.allocation("one")["processes"])
    for i in range(60):
        a.cli("set", "one", f"memory-factor={i % 100 + 1}")
    a.cli("set", "two", "memory-factor=44")
    wait_for("the other process is served", lambda: h.last()[8] == "44")
    last = None
    silent.settimeout(2)
    try:
        while True:
            frame = silent.recv(FRAME)
            if struct.unpack_from("<H", frame, 6)[0] == 4:
                last = frame
            if last and last[16 + 48 + 5 * 8 + 2 * 4] == 60:
                break
    except TimeoutError:
        pass
    factor = 16 + 48 + 5 * 8 + 2 * 4
    assert last[factor] == 60, list(last[100:130])  # the newest value arrives, although earlier ones were dropped


@test()
def broken_allocations_are_reported_and_skipped(a):
    for name, text in {
        "bad-json": "{",
        "wrong-id": '{"version":1,"id":"x","gpus":[{"uuid":"g","units":1}]}',
        "no-gpu": '{"version":1,"id":"no-gpu","gpus":[{"uuid":"GPU-none","units":1}]}',
        "bad-value": json.dumps(
            {"version": 1, "id": "bad-value", "gpus": [{"uuid": UUID % 0, "units": 1}], "settings": {"prefetch": "on"}}
        ),
    }.items():
        (a.dir / "alloc" / name).mkdir()
        (a.dir / "alloc" / name / "allocation.json").write_text(text)
    wait_for("four refusals", lambda: len({e["allocation"] for e in a.events("refused")}) == 4)
    assert any("settings.prefetch: 'on' is not accepted" in e["text"] for e in a.events("refused"))
    assert a.hook(a.allocate("good", 50)).budget() == 4 * GIB


@test()
def a_full_disk_and_a_read_only_folder(a):
    """A failed write is reported to the caller, and the settings in force stay."""
    if os.geteuid() != 0:
        raise Skipped("mounting a small file system needs root")
    h = a.hook(a.allocate("one", 50))
    folder = a.dir / "alloc" / "one"
    # A file system without a free block replaces it: live.json cannot be written.
    if (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "none", str(folder)], capture_output=True
        ).returncode
        != 0
    ):
        raise Skipped("no tmpfs can be mounted here")
    try:
        (folder / "fill").write_bytes(b"x" * 4096)
        r = a.cli("set", "one", "memory-factor=20", check=False)
        assert r.returncode == 1 and "No space left on device" in r.stderr, r
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        r = a.cli("set", "one", "memory-factor=21", check=False)
        assert r.returncode == 1 and "Read-only file system" in r.stderr, r
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    wait_for("served as before", lambda: a.allocation("one") and a.allocation("one")["processes"])
    a.cli("set", "one", "memory-factor=22")
    wait_for("in force", lambda: h.last()[8] == "22")
    # The agent ends with an error that names a run folder on a read-only file system.
    ro = a.dir / "ro"
    ro.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(ro)], check=True)
    try:
        r = subprocess.run(
            [BIN / "sluice-agent", "--run-dir", ro / "run", "--alloc-dir", a.dir / "alloc2"],
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert r.returncode == 1 and "--run-dir" in r.stderr and r.stderr.count("\n") == 1, r
    finally:
        subprocess.run(["umount", "-l", str(ro)], check=True)


if __name__ == "__main__":
    run()
