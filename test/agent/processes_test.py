#!/usr/bin/env python3
"""Ends of processes and of the agent: kills, forks, restarts, removed sockets.

processes_test.py BIN_DIR TEST_DIR [name...]
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from agent_rig import BIN, GIB, HERE, QUIET, ROOT, Skipped, run, test, wait_for


@test()
def killed_parent_with_a_running_child_is_released(a):
    h = a.hook(a.allocate("one", 50))
    h.command("fork")
    child = int(h.expect("child")[1])
    h.end()
    start = time.monotonic()
    wait_for("release", lambda: not a.allocation("one")["processes"], 10)
    took = time.monotonic() - start
    os.kill(child, signal.SIGKILL)
    assert took < (5.0 if a.sanitized() else 1.0), took


@test()
def the_socket_gets_its_folders_label(a):
    """SELinux: the device plugin labels the folder for containers; a socket without that label refuses them."""
    label = b"system_u:object_r:container_file_t:s0\0"
    sock = a.allocate("one", 50)
    try:
        os.setxattr(sock.parent, "security.selinux", label)
    except OSError as error:
        raise Skipped(f"security.selinux cannot be set here: {error}") from None
    a.hook(sock)
    sock.unlink()  # the agent binds another
    wait_for("the label", lambda: sock.exists() and os.getxattr(sock, "security.selinux") == label)


@test()
def cloned_child_does_not_keep_the_session(a):
    """A child without fork handlers keeps the socket open; the agent watches the process itself."""
    sock = a.allocate("one", 50)
    code = (
        "import socket,struct,sys,ctypes,os,time\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[1])\n"
        "s.send(struct.pack('<IBBHQ',0x43494C53,1,0,1,1).ljust(256,b'\\0'));s.recv(256);s.recv(256)\n"
        "pid=ctypes.CDLL(None).syscall(56,17,0,0,0,0)\n"  # clone(SIGCHLD)
        "print(pid,flush=True) if pid else None\n"
        "time.sleep(60)\n"
    )
    p = subprocess.Popen([sys.executable, "-c", code, str(sock)], stdout=subprocess.PIPE, text=True)
    child = int(p.stdout.readline())
    wait_for("attach", lambda: a.allocation("one")["processes"])
    p.kill()
    p.wait()
    wait_for("release", lambda: not a.allocation("one")["processes"], 5)
    os.kill(child, 0)  # it still runs
    os.kill(child, signal.SIGKILL)


@test()
def forked_child_attaches_by_itself(a):
    h = a.hook(a.allocate("one", 50))
    h.command("attach-child")
    wait_for("the child to attach", lambda: ["child", "attached"] in h.lines)
    assert len(a.allocation("one")["processes"]) == 2
    a.hooks.append(h)
    for p in a.allocation("one")["processes"]:
        os.kill(p["pid"], signal.SIGKILL)


@test()
def restarted_agent_has_the_same_ledger(a):
    _x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.command(f"live {6 * GIB}")
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    a.cli("set", "y", "memory-factor=70")
    before = a.ledger()[0]
    for _ in range(3):
        a.kill()
        a.start()
        wait_for("both back", lambda: all(len(s["processes"]) == 1 for s in a.status()["allocations"]))
        total, _card = a.ledger()
        assert total <= 8 * GIB, total
        wait_for("the same ledger", lambda: a.ledger()[0] == before and y.budget() > 5 * GIB)
        assert a.allocation("y")["processes"][0]["gpus"][0]["live_bytes"] == 6 * GIB
        assert a.allocation("y")["settings"]["memory-factor"] == "70"
    z = a.hook(a.allocate("z", 1))
    assert z.expect("budget")
    generations = [int(line[11]) for line in y.seen("budget")]
    assert generations == sorted(generations)


@test()
def killed_at_every_point_of_attach(a):
    sock = str(a.allocate("one", 50))
    for i in range(40):
        p = subprocess.Popen([HERE / "fake_hook", sock], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        time.sleep(0.0005 * i)
        p.kill()
        p.wait()
    wait_for("all released", lambda: not a.allocation("one")["processes"])
    h = a.hook(pathlib.Path(sock))
    assert h.budget() == 4 * GIB


@test()
def removed_sockets_are_made_again(a):
    sock = a.allocate("one", 50)
    h = a.hook(sock)
    for replaced in (False, True):
        if replaced:  # in one step: the agent restores a removed socket at once
            (sock.parent / "file").write_text("a file")
            os.rename(sock.parent / "file", sock)
        else:
            sock.unlink()
        wait_for("the allocation's socket", sock.is_socket)
        a.hook(sock).expect("budget")
    assert not h.seen("lost")
    served = a.dir / "run" / "sluice.sock"
    served.unlink()
    wait_for("the agent's socket", lambda: served.is_socket() and a.status(check=False), 40)
    assert len(a.allocation("one")["processes"]) == 3


@test()
def agent_killed_in_a_loop_under_load(a):
    """$SLUICE_KILL_SECONDS of kills while four processes change their memory, hold tokens, and are stopped and resumed.
    Afterwards the ledger is consistent."""
    hooks = [a.hook(a.allocate(f"h{i}", 25)) for i in range(4)]
    rnd, end, kills = random.Random(3), time.monotonic() + float(os.environ.get("SLUICE_KILL_SECONDS", "30")), 0
    while time.monotonic() < end:
        for h in hooks:
            h.command(f"live {rnd.randrange(16) * GIB // 4}")
            h.command("request 0 1000000")
        stopped = rnd.choice(hooks) if rnd.random() < 0.3 else None
        if stopped:
            stopped.p.send_signal(signal.SIGSTOP)
        time.sleep(rnd.random() * 0.3)
        a.kill()
        kills += 1
        a.start()
        assert a.ledger()[0] <= 8 * GIB
        if stopped:
            stopped.p.send_signal(signal.SIGCONT)
    for h in hooks:
        h.command(f"live {2 * GIB}")
    wait_for("all back", lambda: all(len(s["processes"]) == 1 for s in a.status()["allocations"]))
    wait_for(
        "a consistent ledger",
        lambda: (
            all(h.budget() == 2 * GIB for h in hooks)
            and a.ledger()[0] == 8 * GIB
            and a.ledger()[1]["overdue_bytes"] == 0
        ),
    )
    print(f"        {kills} kills")


@test()
def clock_changes_move_no_budget(a):
    """The agent reads only clocks that cannot be set, except for times that it shows."""
    h = a.hook(a.allocate("one", 50))
    before = a.ledger()[0]
    a.kill()
    os.utime(a.dir / "alloc" / "one" / "allocation.json", (1, 1))  # long ago; and in the future
    a.start()
    wait_for("back", lambda: a.allocation("one") and a.allocation("one")["processes"])
    os.utime(a.dir / "alloc" / "one" / "allocation.json", (4e9, 4e9))
    a.cli("set", "one", "memory-factor=50")
    wait_for("still served", lambda: h.last()[8] == "50")
    assert a.ledger()[0] == before
    # The machine's clock cannot be set here: UnixMs() may read it, and NVML's samples are asked for by it.
    readers = {p.name for p in (ROOT / "agent").glob("*.cc") if b"CLOCK_REALTIME" in p.read_bytes()}
    assert readers == {"event_loop.cc", "nvml_unsafe.cc"}, readers


@test()
def folders_of_a_killed_run_and_agent_are_removed(a):
    """`sluice run` and the agent, killed together, leave a folder. The next agent removes it without a process."""
    a.needs_hook()
    p = subprocess.Popen(
        [BIN / "sluice", "run", "--run-dir", a.dir / "run", "--fraction", "0.3", "--", "sleep", "60"], **QUIET
    )
    folder = a.dir / "alloc" / wait_for("its allocation", lambda: a.status()["allocations"])[0]["id"]
    a.kill()
    p.kill()
    p.wait()
    assert folder.exists()
    a.start()
    wait_for("the removed folder", lambda: not folder.exists())
    assert not a.status()["allocations"]
    # A folder with a running program stays until the program ends.
    p = subprocess.Popen(
        [
            BIN / "sluice",
            "run",
            "--run-dir",
            a.dir / "run",
            "--fraction",
            "0.3",
            "--",
            "sh",
            "-c",
            "exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    one = wait_for("its process", lambda: [x for x in a.status()["allocations"] if x["processes"]])[0]
    a.kill()
    p.kill()
    p.wait()
    a.start()
    wait_for("its return", lambda: a.allocation(one["id"]) and a.allocation(one["id"])["processes"])
    os.kill(one["processes"][0]["pid"], signal.SIGKILL)
    wait_for("the removed folder of its program", lambda: a.allocation(one["id"]) is None)


@test()
def startup_pages_are_unmapped(a):
    if a.sanitized():
        raise Skipped("most of it is the sanitizer's own memory")

    def kib(name):
        return int(next(line.split()[1] for line in open(f"/proc/{a.p.pid}/status") if line.startswith(name)))

    wait_for("less than two thirds of the peak", lambda: kib("VmRSS:") * 3 < kib("VmHWM:") * 2)
    hook = a.hook(a.allocate("one", 50))  # it still serves
    assert a.allocation("one")["processes"], hook


if __name__ == "__main__":
    run()
