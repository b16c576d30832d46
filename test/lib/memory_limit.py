"""Runs a program in a memory cgroup, as the container's limit does, where this machine lets us make one."""

import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """A cgroup (version 1 or 2) with a limit. Without the right to make one, `made` is false and nothing limits."""

    def __init__(self, name, limit):
        self.made, self.folder = False, None
        for parent, limits in (
            (ROOT, {"memory.max": limit, "memory.swap.max": 0}),
            (ROOT / "memory", {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}),
        ):
            if not (parent / "cgroup.procs").exists():
                continue
            self.folder = parent / f"sluice-{name}-{os.getpid()}"
            try:
                self.folder.mkdir()
                for number, (file, value) in enumerate(limits.items()):
                    if number == 0 or (self.folder / file).exists():  # not every kernel accounts swap
                        (self.folder / file).write_text(str(value))
                self.made = True
                return
            except OSError:
                self.close()

    def start(self, command, **more):
        def enter():
            if self.made:
                (self.folder / "cgroup.procs").write_text(str(os.getpid()))

        return subprocess.Popen(command, preexec_fn=enter, **more)

    def close(self):
        """After the program's end."""
        for _ in range(50):
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


def peak_mib(pid):
    """The most that was ever resident, file mappings included."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} has no VmHWM")
