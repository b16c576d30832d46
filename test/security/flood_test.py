#!/usr/bin/env python3
"""One tenant does all it can to keep the agent busy, and others do not notice.

flood_test.py BIN_DIR TEST_DIR [name...]
"""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

from attacker import TOKEN_RELEASE, TOKEN_REQUEST, frame, hello, token
from floods import Victim, attack

import agent_rig  # isort: skip
from agent_rig import Skipped, at_once, metrics_port, read_metrics, run, test, wait_for  # isort: skip

CONFIG = "metrics: {listen: '127.0.0.1:0'}\n"
ROUNDS = 6


def connect_often(agents, times, first=b""):
    """So many connections to each of the agent's sockets, on each of which a frame is sent."""
    held = []
    for path in agents:
        for _ in range(times):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.settimeout(5)
            s.connect(str(path))
            if first:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before the frame is there
                    s.send(first)
            held.append(s)
    return held


def cpu_seconds(pid):
    words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def limited(port, what, pod):
    found = re.search(rf'sluice_limited_total{{[^}}]*pod="{pod}"[^}}]*what="{what}"}} (\d+)', read_metrics(port))
    return int(found[1])


def flooded(a, name, limits, target=None, threads=None):
    port = metrics_port(a)
    attacked, calm = a.allocate("attacker", 50), a.allocate("victim", 50, gpu=1)
    victim = Victim(calm)
    rounds = []
    log = a.dir / "log"
    exact = at_once(a.p.pid, threads) and at_once(os.getpid())
    for _ in range(ROUNDS):
        before = victim.p99()
        with attack(name, target or attacked):
            time.sleep(0.5)
            size, begin = log.stat().st_size, time.monotonic()
            under, attach = victim.p99(), min(victim.attach_time() for _ in range(5))
            grown = (log.stat().st_size - size) / (time.monotonic() - begin)
            for what in limits:
                wait_for(f"limited {what}", lambda what=what: limited(port, what, "p-attacker") > 0)
                assert limited(port, what, "p-victim") == 0
        rounds.append((before, under, attach))
        # A busy machine has other programs of real-time priority, or lets none have it, so a round may meet another
        # program. One good round is enough: without turns there is none. The goal is 1 ms; a machine that takes more
        # than a third of that without a flood is judged by its own time.
        if before < 0.005 and under <= max(0.001, 3 * before) and attach < 0.05:
            break
    else:
        raise AssertionError(f"p99 of a token's answer before and under '{name}', attach, in s: {rounds}")
    print(
        f"        {name}: p99 {before * 1e6:.0f} us alone, {under * 1e6:.0f} us beside it; attach {attach * 1e3:.1f} ms"
        + ("" if exact else ", without real-time priority")
    )
    assert grown < 20_000, f"the log grows by {grown:.0f} bytes a second"
    events = json.loads(a.cli("events", "-o", "json").stdout)["events"]
    assert any(e["allocation"] == "victim" and e["kind"] == "attached" for e in events)
    assert sum(e["allocation"] == "attacker" for e in events) <= 200


@test(config=CONFIG, gpus=2)
def a_flood_of_garbage(a):
    flooded(a, "garbage", ("events", "connects"))


@test(config=CONFIG, gpus=2)
def a_flood_of_attaches(a):
    flooded(a, "attach", ("events", "connects"))


@test(config=CONFIG, gpus=2)
def a_flood_of_token_requests(a):
    flooded(a, "tokens", ())


@test(config=CONFIG, gpus=2)
def a_flood_of_notices(a):
    flooded(a, "notices", ("events",))


@test(config=CONFIG, gpus=2)
def a_flood_of_oversized_frames(a):
    flooded(a, "oversized", ("events",))


@test(config=CONFIG, gpus=2)
def a_flood_of_all_kinds_of_frames(a):
    flooded(a, "kinds", ())


@test(config=CONFIG, gpus=2)
def a_flood_of_short_connections_from_many_processes(a):
    flooded(a, "crowd", ("connects",))


@test(config=CONFIG, gpus=2)
def a_flood_of_requests_for_metrics(a):
    """Any pod may ask for the open metrics. A thousand attached processes make each page long."""
    with attack("attached", a.allocate("crowd", 10)):
        # The loop alone runs at once: the threads of the server are of lower priority than it.
        flooded(a, "pages", (), metrics_port(a), [a.p.pid])
        begin, cpu = time.monotonic(), cpu_seconds(a.p.pid)
        with attack("pages", metrics_port(a)):
            time.sleep(3)
        used = (cpu_seconds(a.p.pid) - cpu) / (time.monotonic() - begin)
    assert used < 0.7, f"the agent uses {used:.2f} processors"


@test(config=CONFIG, gpus=2)
def a_flood_of_changing_pages(a):
    flooded(a, "scribble", ())


@test(config=CONFIG)
def slow_readers_of_metrics_do_not_keep_the_probe_waiting(a):
    """Half-open clients, ones that send a byte at times, ones that read no answer: kubelet would restart the agent."""
    port, held = metrics_port(a), []
    for i in range(300):
        # Of another address than the probe's, as a pod is.
        s = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=("127.0.0.2", 0))
        held.append(s)
        if i % 3 == 1:
            s.send(b"GET /metrics HTTP/1.1\r\nHost: ")
        elif i % 3 == 2:
            with contextlib.suppress(OSError):
                for _ in range(20):
                    s.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    took = []
    for n in range(10):
        with contextlib.suppress(OSError):
            held[1 + 3 * n].send(b"x")
        begin = time.monotonic()
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
        assert answer.status == 200
        took.append(time.monotonic() - begin)
        time.sleep(0.2)
    assert max(took) < 1 and len(os.listdir(f"/proc/{a.p.pid}/fd")) < 200, took
    for s in held:
        s.close()


@test(gpus=2)
def answers_that_are_not_read_take_little_memory(a):
    """The kernel charges the agent for waiting answers: 1,024 silent readers could end it at its limit."""
    a.allocate("victim", 50, gpu=1)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(str(a.allocate("attacker", 50)))
    s.send(hello())
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    holder.connect(str(a.dir / "alloc/attacker/agent.sock"))
    holder.send(hello())
    time.sleep(0.5)
    holder.send(token(TOKEN_REQUEST, 0))  # the other has to wait, and each of its requests is answered by PING
    time.sleep(0.2)
    gpu = (agent_rig.UUID % 0).encode().ljust(48, b"\0")
    sent = 0
    for i in range(3000):
        with contextlib.suppress(BlockingIOError):
            s.send(token(TOKEN_REQUEST, 0) if i % 2 else frame(14, gpu + struct.pack("<QI", 3, 0)), socket.MSG_DONTWAIT)
            sent += 1
        if i % 50 == 0:
            time.sleep(0.01)
    time.sleep(0.5)
    waiting = 0
    a.p.send_signal(signal.SIGSTOP)  # it would go on as soon as there is room
    try:
        with contextlib.suppress(BlockingIOError):
            while s.recv(256, socket.MSG_DONTWAIT):
                waiting += 1
    finally:
        a.p.send_signal(signal.SIGCONT)
    # Each is more than a KiB of kernel memory. Frames beyond them wait in the tenant's own memory.
    assert 0 < waiting <= 40 and sent < 1000, (waiting, sent)
    assert Victim(a.dir / "alloc/victim/agent.sock").answer() < 5
    # All that it asked for is answered once it reads.
    s.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while s.recv(256):
            waiting += 1
    assert waiting >= sent - 2, (waiting, sent)
    s.settimeout(5)
    s.send(frame(14, gpu + struct.pack("<QI", 77, 0)))
    while struct.unpack_from("<H", got := s.recv(256), 6)[0] != 15 or struct.unpack_from("<Q", got, 64)[0] != 77:
        pass


@test(config="max_connections: 64\n", gpus=2)
def all_connections_of_a_node_leave_some_for_others(a):
    attacked, calm = [a.allocate(f"attacker{i}", 25) for i in range(3)], a.allocate("victim", 50, gpu=1)
    held = connect_often(attacked, 100, hello())
    wait_for("refusals", lambda: len({e["allocation"] for e in a.events("refused")}) == 3)
    processes = [len(x["processes"]) for x in a.status()["allocations"] if x["id"] != "victim"]
    assert sum(processes) <= 64 and min(processes) >= 8 and max(processes) <= 32, processes
    victims = [Victim(calm) for _ in range(8)]
    assert victims[-1].answer() < 5
    for s in held:
        s.close()


@test()
def a_token_that_is_never_given_back_is_taken(a):
    """The holder ignores the revocation, and asks again at once: the other waits for a lease, not for ever."""
    hoarder = Victim(a.allocate("hoarder", 50))
    other = Victim(a.allocate("other", 50))
    hoarder.s.settimeout(0.01)
    took = []
    for _ in range(5):
        hoarder.s.send(token(TOKEN_REQUEST, 0))
        time.sleep(0.05)
        begin = time.monotonic()
        other.s.send(token(TOKEN_REQUEST, 0))
        while struct.unpack_from("<H", got := other.s.recv(256), 6)[0] != 6:
            pass
        took.append(time.monotonic() - begin)
        other.s.send(token(TOKEN_RELEASE, 0, struct.unpack_from("<Q", got, 16 + 48 + 32)[0]))
    assert max(took) < 2, took


def restart_limited(a, descriptors, through):
    """The agent again, with so few descriptors, started by the shell's words `through`."""
    a.kill(signal.SIGTERM)
    programs = a.dir / "programs"
    programs.mkdir()
    (programs / "sluice").symlink_to(agent_rig.BIN / "sluice")
    agent = programs / "sluice-agent"
    agent.write_text(f'#!/bin/sh\nulimit -n {descriptors}\n{through} {agent_rig.BIN}/sluice-agent "$@"\n')
    agent.chmod(0o755)
    before, agent_rig.BIN = agent_rig.BIN, programs
    try:
        a.start()
    finally:
        agent_rig.BIN = before


@test(gpus=2)
def silent_connections_leave_descriptors_for_others(a):
    """With room for 512 descriptors, two tenants open all that they can and say nothing."""
    restart_limited(a, 512, "exec")
    attacked, calm = [a.allocate(f"attacker{i}", 25) for i in range(2)], a.allocate("victim", 50, gpu=1)
    held = connect_often(attacked, 400)
    wait_for("refusals", lambda: {e["allocation"] for e in a.events("refused")} >= {"attacker0", "attacker1"})
    assert len(os.listdir(f"/proc/{a.p.pid}/fd")) < 480
    victims = [Victim(calm) for _ in range(8)]  # a process for each of them, and the tools
    assert victims[-1].answer() < 5
    assert a.allocation("victim")["hook_state"] == "attached"
    assert "No file descriptors" not in (a.dir / "log").read_text()
    for s in held:
        s.close()


@test()
def descriptors_sent_along_are_dropped(a):
    """A tenant sends descriptors with its frames: the agent keeps none of them."""
    import array

    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(str(a.allocate("one", 50)))
    s.send(hello())
    wait_for("attach", lambda: a.allocation("one")["processes"])
    count = lambda: len(os.listdir(f"/proc/{a.p.pid}/fd"))
    before = count()
    with open("/dev/null") as null:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * 200))]
        for _ in range(20):
            s.sendmsg([frame(11)], rights)  # PONG
    s.send(frame(9, struct.pack("<II", 3, 0) + b"after"))
    wait_for("the frames", lambda: a.events("limit reached"))
    assert count() <= before + 2, (before, count())


# Sends descriptors that no one receives, in sockets of its own: each lies in a message.
IN_FLIGHT = """
import array, resource, socket, sys
held, file = [], open("/dev/null")
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()] * 250))]
while True:
    held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    held[-1][0].setblocking(False)
    try:
        while True: held[-1][0].sendmsg([b"x"], rights)
    except BlockingIOError: pass
    except OSError: break  # ETOOMANYREFS
print("ready", flush=True)
sys.stdin.readline()
"""


@test()
def descriptors_in_flight_hold_attaches_up_and_are_told(a):
    """The kernel counts them for each user, and the root of a container is the agent's user, without capabilities."""
    if os.geteuid() != 0:
        raise Skipped("another user than the agent's counts for itself")
    bare = "exec setpriv --bounding-set -all --inh-caps -all"
    restart_limited(a, 1024, bare)
    calm = a.allocate("victim", 50)
    command = f"ulimit -n 2048; {bare} {sys.executable} -c '{IN_FLIGHT}'"
    attacker = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        assert attacker.stdout.readline() == "ready\n"
        s.settimeout(1)
        s.connect(str(calm))
        s.send(hello())
        wait_for("the event", lambda: a.events("descriptors in flight"))
        used = cpu_seconds(a.p.pid)
        time.sleep(1)
        assert cpu_seconds(a.p.pid) - used < 0.2, "the agent tries again all the time"
        assert len(a.events("descriptors in flight")) == 1
    finally:
        attacker.communicate("end\n")
    s.settimeout(5)
    got, control, _, _ = s.recvmsg(256, socket.CMSG_SPACE(4))
    assert struct.unpack_from("<H", got, 6)[0] == 2 and control, "WELCOME comes late, with the page"
    assert struct.unpack_from("<H", s.recv(256), 6)[0] == 4
    s.close()


if __name__ == "__main__":
    sys.exit(run())
