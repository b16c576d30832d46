#!/usr/bin/env python3
"""Processes that hide from the agent whose they are: the kernel's answers under their pid say nothing.

hiding_test.py BIN_DIR TEST_DIR [name...]
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

from bypass_test import MAX_SECONDS, not_hooked
from kubernetes_test import METRICS, UID, on_node

from attacker import contained, hello, pod_cgroup  # isort: skip
from agent_rig import HERE, run, wait_for  # isort: skip


def ended_thread(node, n, *arguments):
    p = node.process(n, HERE / "ended_thread", *arguments)
    state = lambda: pathlib.Path(f"/proc/{p.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    wait_for("the end of its first thread", lambda: state() == "Z")
    return p


@on_node(METRICS)
def a_process_whose_first_thread_ended_is_reported(a, node):
    """Of an ended thread the kernel shows no mounts, and with cgroup v1 the root cgroup: a process of the node."""
    node.allocate("thread", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-thread")["pod"] == "thread")
    time.sleep(2)  # to processes of its first second the agent gives more time to attach
    assert not_hooked(a, node, "thread", ended_thread(node, 1).pid) < MAX_SECONDS
    assert not a.events("external process")


def _victim_and_attacker(a, node):
    """Containers 1 and 2 of two pods; the socket of the first."""
    victim = node.allocate("victim", 1, 50, 0)
    node.allocate("attacker", 2, 50, 1)
    node.start()
    wait_for("names", lambda: a.allocation("pod-attacker")["pod"] == "attacker" and victim.exists())
    return victim


@on_node(METRICS)
def a_process_whose_first_thread_ended_is_refused_at_anothers_socket(a, node):
    victim = _victim_and_attacker(a, node)
    (a.dir / "frame").write_bytes(hello(1))
    ended_thread(node, 2, victim, a.dir / "frame")
    wait_for("the Event on the attacker's pod", lambda: "SluiceForgedIdentity" in node.api.reasons("attacker"))
    assert not a.allocation("pod-victim")["processes"]


@on_node(METRICS)
def own_namespaces_change_no_identity(a, node):
    """Of pids, cgroups and users: the agent sees the process from outside of all of them."""
    victim = _victim_and_attacker(a, node)
    refused = lambda: len(a.events("forged identity"))
    for n, namespaces in enumerate((["--pid", "--fork", "--mount-proc"], ["--cgroup"], ["--user", "--map-root-user"])):
        node.process(2, "unshare", *namespaces, HERE / "fake_hook", victim, "300")
        wait_for(f"the refusal in {namespaces}", lambda n=n: refused() > n)
    assert not a.allocation("pod-victim")["processes"] and "SluiceForgedIdentity" in node.api.reasons("attacker")
    # Its own socket takes it from any of them.
    own = a.dir / "alloc/pod-attacker/agent.sock"
    node.process(2, "unshare", "--pid", "--fork", "--cgroup", HERE / "fake_hook", own)
    wait_for("its attach", lambda: a.allocation("pod-attacker")["processes"])


@contextlib.contextmanager
def deep_cgroup(procs):
    """A cgroup below that of `procs` whose path is longer than the kernel writes: some kernels cut it off, others say
    nothing at all. A tenant may be allowed to make cgroups.
    """
    top = os.open(procs.parent, os.O_DIRECTORY)
    held = [top]
    name = "d" * 200
    try:
        for _ in range(24):
            os.mkdir(name, dir_fd=held[-1])
            held.append(os.open(name, os.O_DIRECTORY, dir_fd=held[-1]))
        yield held[-1]
    finally:
        for above in reversed(held[:-1]):
            wait_for("the end of its processes", lambda at=above: _removed(name, at))
        for fd in held:
            os.close(fd)


def _removed(name, above):
    try:
        os.rmdir(name, dir_fd=above)
        return True
    except OSError:
        return False


def move(pid, cgroup):
    fd = os.open("cgroup.procs", os.O_WRONLY, dir_fd=cgroup)
    os.write(fd, str(pid).encode())
    os.close(fd)


@on_node(METRICS)
def a_process_in_a_cgroup_too_deep_to_be_named_is_reported(a, node):
    sock = node.allocate("deep", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-deep")["pod"] == "deep" and sock.exists())
    procs = pod_cgroup(UID % 1, "c")
    with deep_cgroup(procs) as deep:
        p = contained(sock.parent, "exec sleep 60", procs)
        try:
            wait_for("its start", lambda: pathlib.Path(f"/proc/{p.pid}/comm").read_text().strip() == "sleep")
            move(p.pid, deep)
            assert not_hooked(a, node, "deep", p.pid) < MAX_SECONDS
        finally:
            p.kill()
            p.wait()


@on_node(METRICS)
def a_process_in_a_cgroup_too_deep_to_be_named_is_refused_at_anothers_socket(a, node):
    victim = node.allocate("victim", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-victim")["pod"] == "victim" and victim.exists())
    with deep_cgroup(pod_cgroup(UID % 2, "c")) as deep:
        waiting = ["sh", "-c", 'read go && exec "$@"', "sh"]
        p = subprocess.Popen([*waiting, HERE / "fake_hook", victim], stdin=subprocess.PIPE)
        try:
            move(p.pid, deep)
            p.stdin.write(b"go\n")
            p.stdin.flush()
            wait_for("the refusal", lambda: a.events("forged identity"))
            time.sleep(0.2)
            assert not a.allocation("pod-victim")["processes"]
        finally:
            p.kill()
            p.wait()


if __name__ == "__main__":
    sys.exit(run())
