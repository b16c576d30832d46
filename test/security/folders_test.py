#!/usr/bin/env python3
"""Links and races in the allocations' folder, as a process with a writable mount of it could make them.

folders_test.py BIN_DIR TEST_DIR [name...]
"""

import json
import os
import resource
import shutil
import socket
import sys
import threading
import time

from attacker import hello  # noqa: F401 (sets the path of agent_rig)

from agent_rig import GIB, UUID, run, test, wait_for  # isort: skip


@test()
def links_in_the_folders_reach_nothing_outside(a):
    calm = a.hook(a.allocate("calm", 50))
    outside = a.dir / "outside"
    outside.mkdir()
    (outside / "agent.sock").write_text("a file of the node")
    (outside / "secret").write_text("left alone")
    text = json.dumps({"version": 1, "id": "linked", "gpus": [{"uuid": UUID % 0, "units": 10}]})
    (outside / "allocation.json").write_text(text)
    alloc = a.dir / "alloc"
    # The folder itself, its file, the socket and the settings as links.
    (alloc / "linked").symlink_to(outside)
    for name, link, to in (
        ("one", "agent.sock", outside / "secret"),
        ("two", "live.json", outside / "secret"),
        ("three", "live.json.tmp", outside / "secret"),
        ("four", "allocation.json", outside / "secret"),
        ("five", "allocation.json", "/dev/zero"),
    ):
        folder = alloc / name
        folder.mkdir()
        (folder / link).symlink_to(to)
        if link != "allocation.json":
            body = json.dumps({"version": 1, "id": name, "gpus": [{"uuid": UUID % 0, "units": 1}]})
            (folder / ".tmp").write_text(body)
            (folder / ".tmp").rename(folder / "allocation.json")
    for name in ("six", "seven", "eight"):
        (alloc / name).mkdir()
    os.mkfifo(alloc / "six" / "allocation.json")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(alloc / "seven" / "allocation.json"))
    with open(alloc / "eight" / "allocation.json", "wb") as huge:
        huge.truncate(1 << 40)  # no block of it is written
    # Of served ones: another file of the node by a hard link, and a pipe, which open() would wait at.
    for name in ("nine", "ten"):
        (alloc / name).mkdir()
        body = json.dumps({"version": 1, "id": name, "gpus": [{"uuid": UUID % 0, "units": 1}]})
        (alloc / name / ".tmp").write_text(body)
    os.link(outside / "secret", alloc / "nine" / "live.json")
    os.mkfifo(alloc / "ten" / "live.json")
    for name in ("nine", "ten"):
        (alloc / name / ".tmp").rename(alloc / name / "allocation.json")
    served = {"one", "two", "three", "nine", "ten"}
    wait_for("the served ones", lambda: served <= {x["id"] for x in a.status()["allocations"]})
    for name in ("two", "three", "nine", "ten"):
        a.cli("set", name, "memory-factor=40", check=False)
    time.sleep(1)
    assert (outside / "secret").read_text() == "left alone"
    memory = int(next(x for x in open(f"/proc/{a.p.pid}/status") if x.startswith("VmHWM")).split()[1])
    assert memory < 200 << 10, f"{memory} KiB"
    assert (outside / "agent.sock").read_text() == "a file of the node"
    assert {x["id"] for x in a.status()["allocations"]} == {"calm", *served}
    assert (alloc / "one" / "agent.sock").is_socket() and not (alloc / "one" / "agent.sock").is_symlink()
    a.cli("set", "calm", "memory-factor=33")
    wait_for("the other tenant is served", lambda: calm.last()[8] == "33")


@test()
def folders_that_change_all_the_time_disturb_nobody(a):
    calm, stop = a.hook(a.allocate("calm", 50)), threading.Event()
    alloc = a.dir / "alloc"

    def race(n):
        name, i = f"race{n}", 0
        while not stop.is_set():
            i += 1
            folder = alloc / name
            try:
                folder.mkdir()
                body = json.dumps({"version": 1, "id": name, "gpus": [{"uuid": UUID % 0, "units": 5}]})
                (folder / "allocation.json").write_text(body[: len(body) if i % 3 else i % len(body)])
                if i % 2:
                    (folder / "agent.sock").unlink(missing_ok=True)
                for file in list(folder.iterdir()):
                    file.unlink(missing_ok=True)
                folder.rmdir()
            except OSError:
                pass

    threads = [threading.Thread(target=race, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    try:
        for factor in range(20, 40):
            a.cli("set", "calm", f"memory-factor={factor}")
            wait_for("the budget's frame", lambda factor=factor: calm.last()[8] == str(factor))
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not calm.seen("lost") and calm.budget() >= 4 * GIB
    assert len(os.listdir(f"/proc/{a.p.pid}/fd")) < 60


@test()
def texts_that_are_cut_within_a_letter_leave_the_events_readable(a):
    alloc = a.dir / "alloc"
    # The agent shows 64 bytes of a wrong id. In one of the two they end within a letter.
    for name in ("x", "xx"):
        (alloc / name).mkdir()
        text = json.dumps({"version": 1, "id": name + "é" * 60, "gpus": []}, ensure_ascii=False)
        (alloc / name / ".tmp").write_text(text)
        (alloc / name / ".tmp").rename(alloc / name / "allocation.json")
    wait_for("both refusals", lambda: len(a.events("refused")) == 2)
    # Control characters would reach the terminal of a reader of the status.
    (alloc / "names").mkdir()
    body = {"version": 1, "id": "names", "gpus": [{"uuid": UUID % 0, "units": 1}], "container": "c\x1b[31m\n\x9b31m"}
    (alloc / "names" / ".tmp").write_text(json.dumps(body))
    (alloc / "names" / ".tmp").rename(alloc / "names" / "allocation.json")
    wait_for("the allocation", lambda: a.allocation("names"))
    assert a.allocation("names")["container"] == "c?[31m??31m", a.allocation("names")
    assert "c?[31m??31m" in a.cli("status").stdout


@test()
def sockets_that_cannot_be_made_cost_no_time(a):
    def ticks():
        return sum(int(x) for x in open(f"/proc/{a.p.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])

    used = len(os.listdir(f"/proc/{a.p.pid}/fd"))
    _, most = resource.prlimit(a.p.pid, resource.RLIMIT_NOFILE)
    # Of each parity: with two free descriptors the socket gets its name in the folder, and then no queue.
    for spare in (6, 7):
        resource.prlimit(a.p.pid, resource.RLIMIT_NOFILE, (used + spare, most))
        names = [f"s{spare}-{i}" for i in range(20)]
        for name in names:
            a.allocate(name, 1, wait=False)
        time.sleep(1)
        before = ticks()
        time.sleep(2)
        assert ticks() - before < 50, f"{ticks() - before} of 200 ticks"
        resource.prlimit(a.p.pid, resource.RLIMIT_NOFILE, (most, most))
        refused = {e["allocation"]: e["text"] for e in a.events("refused")}
        assert refused and all("Too many open files" in text for text in refused.values()), refused
        wait_for("all sockets, at the next scan", lambda n=names: len(a.status()["allocations"]) >= len(n), 20)
        for name in names:
            shutil.rmtree(a.dir / "alloc" / name, ignore_errors=True)  # the agent removes the socket
        wait_for("their end", lambda: not a.status()["allocations"])


if __name__ == "__main__":
    sys.exit(run())
