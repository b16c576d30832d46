"""The means of an attacker: a container of its own, frames by hand. On top of agent_rig.py."""

import atexit
import contextlib
import os
import pathlib
import shlex
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "agent"))

from agent_rig import FRAME, MAGIC, UUID, Skipped

HELLO, TOKEN_REQUEST, TOKEN_GRANT, TOKEN_RELEASE, PONG, MEMORY_REQUEST, PROCESSES_REQUEST = 1, 5, 6, 8, 11, 12, 14
HIERARCHIES = ("pids", "unified", "")  # cgroup v1, hybrid, v2
_made = []


def frame(kind, body=b"", seq=1):
    return (struct.pack("<IBBHQ", MAGIC, 1, 0, kind, seq) + body).ljust(FRAME, b"\0")


def hello(pid=0, flags=0):
    return frame(HELLO, struct.pack("<iIQ", pid or os.getpid(), flags, 1) + b"9.9.9".ljust(32, b"\0"))


def token(kind, gpu, ident=0):
    return frame(kind, (UUID % gpu).encode().ljust(48, b"\0") + struct.pack("<QQQQQII", 0, 0, 0, 1000, ident, 0, 0))


def cgroup(path):
    """A cgroup of this path, which the host sees as Kubernetes' own. Its cgroup.procs takes pids."""
    for name in HIERARCHIES:
        top = pathlib.Path("/sys/fs/cgroup") / name
        if not (top / "cgroup.procs").exists():
            continue
        folder = top / path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        for part in [folder, *folder.parents]:
            if part == top:
                break
            _made.append(part)
        return folder / "cgroup.procs"
    raise Skipped("no cgroup can be made here")


@atexit.register
def _remove_cgroups():
    for folder in _made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def pod_cgroup(uid, container):
    # Below a folder of its own, as with --cgroup-root: a local cluster's kubelet removes pods that it does not know.
    return cgroup(f"sluice-test/kubepods/besteffort/pod{uid}/{container * 64}")


def contained(folder, command, procs=None, program=None, **popen):
    """Runs a shell command as a container's process: in a mount namespace where only `folder` is at /opt/sluice/run,
    and `program`, if any, at /opt/program. The build folder may be hidden from its user."""
    if os.geteuid() != 0:
        raise Skipped("a container needs root")
    outer = (
        "mount -t tmpfs none /opt && mkdir -p /opt/sluice/run && "
        f"mount --bind {shlex.quote(str(folder))} /opt/sluice/run"
        + (f" && touch /opt/program && mount --bind {shlex.quote(str(program))} /opt/program" if program else "")
        + f" && exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c {shlex.quote(command)}"
    )
    enter = f"echo $$ > {procs} && " if procs else ""
    return subprocess.Popen(["unshare", "-m", "sh", "-c", enter + outer], **popen)


def behind_own_mount(source, command):
    """In a user and mount namespace of its own, without privilege: `source` at /opt/sluice/run."""
    inner = f"mount --bind {shlex.quote(str(source))} /opt/sluice/run && exec {command}"
    return "exec unshare -Um --map-root-user sh -c " + shlex.quote(inner)
