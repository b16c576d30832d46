#!/usr/bin/env python3
"""Ways past the hook, and into another container's process. With a fake API server as kubernetes_test.py.

bypass_test.py BIN_DIR TEST_DIR [name...]
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from kubernetes_test import METRICS, on_node

from agent_rig import GIB, HERE, Skipped, run, wait_for  # isort: skip

# A poll a second, and the time that the agent gives a process to attach.
MAX_SECONDS = 4
CONFIG = METRICS + "attestation: {interval_s: 1, cgroup_root: %s}\n"


def not_hooked(a, node, name, pid):
    """Seconds from the driver's word to the report, with Event."""
    # Processes of the agent's first second have ten to attach again.
    time.sleep(1.1)
    begin = time.time()
    (a.dir / "gpu-processes").write_text(f"{pid}\n")
    wait_for("not hooked", lambda: a.allocation("pod-" + name)["hook_state"] == "not hooked")
    # By the agent's clock: on a busy machine the tools themselves take seconds.
    took = int(a.events("not hooked")[-1]["unix_ms"]) / 1e3 - begin
    wait_for("the Event", lambda: "SluiceNotHooked" in node.api.reasons(name))
    return took


@on_node(METRICS)
def a_static_program_on_the_device_file_is_reported(a, node):
    """Raw calls of the driver by a static binary: nothing of the hook is in it, whatever LD_PRELOAD says."""
    node.allocate("raw", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-raw")["pod"] == "raw")
    library = HERE.parent.parent / "lib" / "libsluice.so"
    p = node.process(1, "env", f"LD_PRELOAD={library}", HERE / "raw_driver")
    wait_for("its start", lambda: pathlib.Path(f"/proc/{p.pid}/exe").resolve().name == "raw_driver")
    assert "libsluice" not in pathlib.Path(f"/proc/{p.pid}/maps").read_text()
    assert not_hooked(a, node, "raw", p.pid) < MAX_SECONDS


@on_node(METRICS)
def a_program_that_clears_its_environment_is_reported(a, node):
    """It attached, and replaces itself by a program without the preload midway. Its pid stays the same."""
    sock = node.allocate("exec", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-exec")["pod"] == "exec" and sock.exists())
    code = (
        "import os,socket,sys\n"
        f"sys.path[:0]={sys.path!r}; sys.argv[1:1]={sys.argv[1:3]!r}\n"
        "from attacker import hello\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[-1])\n"
        "s.send(hello()); sys.stdin.readline()\n"
        "os.execve('/bin/sleep',['sleep','60'],{})\n"
    )
    p = node.process(1, sys.executable, "-c", code, sock)
    wait_for("HELLO", lambda: a.allocation("pod-exec")["processes"])
    p.stdin.write(b"\n")
    p.stdin.flush()
    wait_for("the new program", lambda: pathlib.Path(f"/proc/{p.pid}/exe").resolve().name in ("sleep", "coreutils"))
    assert not_hooked(a, node, "exec", p.pid) < MAX_SECONDS
    assert not a.allocation("pod-exec")["processes"]


# Attaches to every process that it can name, and prints those of the wanted program that let it.
TRACE = """
import ctypes, os, sys
libc, got = ctypes.CDLL(None, use_errno=True), []
ATTACH, DETACH = 16, 17
for pid in sorted(int(n) for n in os.listdir('/proc') if n.isdigit()):
    try: name = open(f'/proc/{pid}/comm').read().strip()
    except OSError: continue
    if name != 'fake_hook': continue
    if libc.ptrace(ATTACH, pid, 0, 0) == 0:
        os.waitpid(pid, 0); got.append(pid); libc.ptrace(DETACH, pid, 0, 0)
    try: open(f'/proc/{pid}/mem', 'rb').close(); got.append(pid)
    except OSError: pass
print(sorted(set(got)))
"""


@on_node(METRICS)
def ptrace_reaches_no_process_of_another_container(a, node):
    if os.geteuid() != 0:
        raise Skipped("users and namespaces need root")
    victim = node.allocate("victim", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-victim")["pod"] == "victim" and victim.exists())
    user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "--bounding-set", "-all"]
    for folder in (a.dir, *a.dir.glob("alloc/*")):
        folder.chmod(0o755)
    p = node.process(1, *user, HERE / "fake_hook", victim)
    wait_for("its hook", lambda: a.allocation("pod-victim")["processes"])
    assert a.allocation("pod-victim")["processes"][0]["pid"] == p.pid

    def reached(*command):
        return subprocess.run(
            [*command, sys.executable, "-I", "-c", TRACE], capture_output=True, text=True, check=True
        ).stdout.strip()

    own_pids = ["unshare", "--pid", "--fork", "--mount-proc"]
    assert reached(*own_pids, *user) == "[]"  # a container: it cannot even name another's process
    other = [x.replace("1000", "1001") for x in user]
    assert reached(*other) == "[]"  # on a shared pid namespace the kernel compares users
    status = pathlib.Path(f"/proc/{p.pid}/status").read_text()
    assert re.search(r"^TracerPid:\t0$", status, re.M), status
    assert a.allocation("pod-victim")["hook_state"] == "attached"
    # The open gap: one user and one pid namespace, as in a pod with shareProcessNamespace, are one tenant.
    assert reached(*user) == f"[{p.pid}]"


def limits(agent):
    """The newest limits that the driver was given: by GPU and pod."""
    out, file = {}, agent.dir / "limits"
    text = file.read_text() if file.exists() else ""
    for line in text.splitlines():
        gpu, cgroup, soft, hard = line.split()
        assert soft == hard, line
        out[int(gpu), re.search(r"/pod([^/]*)/", cgroup)[1][-1]] = int(hard)
    return out


def hierarchy():
    for name in ("pids", "unified", ""):
        top = pathlib.Path("/sys/fs/cgroup") / name
        if (top / "cgroup.procs").exists() and os.access(top, os.W_OK):
            return top
    raise Skipped("no cgroup can be made here")


def by_driver(f):
    """The agent runs with a driver that can limit the memory of cgroups."""

    def case(a, node):
        node.more = CONFIG % hierarchy()
        os.environ["FAKE_NVML_LIMITS"] = str(a.dir / "limits")
        try:
            f(a, node)
        finally:
            del os.environ["FAKE_NVML_LIMITS"]

    case.__name__ = f.__name__
    on_node()(case)
    return f


@by_driver
def a_driver_that_limits_cgroups_is_told_the_budgets(a, node):
    """Driver 615: unmanaged memory of a container is bounded whatever its processes do, with the hook or without."""
    hooked, raw = node.allocate("hooked", 1, 50, 0), node.allocate("raw", 2, 25, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-raw")["pod"] == "raw" and hooked.exists() and raw.exists())
    h = node.process(1, HERE / "fake_hook", hooked)
    wait_for("its hook", lambda: a.allocation("pod-hooked")["processes"])
    r = node.process(2, HERE / "raw_driver")
    (a.dir / "gpu-processes").write_text(f"{h.pid} {r.pid}\n")
    wait_for("both limits", lambda: len(limits(a)) == 2)
    # A context for each process and one more, beside the guarantee. 8 GiB less the contexts' bytes.
    found = limits(a)
    assert 5 * GIB < found[0, "1"] <= 6 * GIB, found
    assert 2.5 * GIB < found[0, "2"] <= 3 * GIB, found
    a.cli("set", "pod-raw", "gpu-fraction=0.1")
    wait_for("the limit to follow", lambda: limits(a)[0, "2"] < 2 * GIB)
    assert not a.events("driver limit"), a.events("driver limit")
    size = (a.dir / "limits").stat().st_size
    time.sleep(2.5)
    assert (a.dir / "limits").stat().st_size == size, "limits that did not change are not set again"
    a.kill(signal.SIGTERM)
    a.start()
    wait_for("an agent that starts to set them again", lambda: (a.dir / "limits").stat().st_size > size)


@by_driver
def a_driver_that_refuses_a_limit_is_reported_once(a, node):
    node.more = CONFIG % (a.dir / "no-cgroups")
    sock = node.allocate("one", 1, 50, 0)
    node.start()
    wait_for("names", lambda: a.allocation("pod-one")["pod"] == "one" and sock.exists())
    h = node.process(1, HERE / "fake_hook", sock)
    wait_for("its hook", lambda: a.allocation("pod-one")["processes"])
    (a.dir / "gpu-processes").write_text(f"{h.pid}\n")
    wait_for("the event", lambda: a.events("driver limit"))
    assert "not below attestation.cgroup_root" in a.events("driver limit")[0]["text"]
    time.sleep(2.5)
    assert len(a.events("driver limit")) == 1
    assert a.allocation("pod-one")["hook_state"] == "attached"


if __name__ == "__main__":
    sys.exit(run())
