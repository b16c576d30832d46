"""Guards every program on the real GPU: one whose managed memory is oversubscribed beyond its free memory can hang.

`Allowance` is a quarter of the free memory (at most 34 GiB): all programs that run at once take their managed memory
from it, each as much as it names, and wait while too little is left. Its variables make the hook refuse the rest.
`Sampler` samples the device's used memory from outside, ten times a second.
"""

import contextlib
import ctypes
import os
import subprocess
import threading
import time

GIB = 1 << 30
MAX_MANAGED = 34 * GIB


class Refused(Exception):
    pass


class Nvml:
    """Used and free bytes of each GPU, by NVML itself: no package needed."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    class MemoryV2(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint),
            ("total", ctypes.c_ulonglong),
            ("reserved", ctypes.c_ulonglong),
            ("free", ctypes.c_ulonglong),
            ("used", ctypes.c_ulonglong),
        ]

    class Process(ctypes.Structure):
        _fields_ = [
            ("pid", ctypes.c_uint),
            ("used", ctypes.c_ulonglong),
            ("gpu_instance", ctypes.c_uint),
            ("compute_instance", ctypes.c_uint),
        ]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._check(self.lib.nvmlInit_v2(), "nvmlInit_v2")
        count = ctypes.c_uint()
        self._check(self.lib.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
        self.handles = []
        for i in range(count.value):
            handle = ctypes.c_void_p()
            self._check(
                self.lib.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex_v2"
            )
            self.handles.append(handle)

    def _check(self, code, what):
        if code != 0:
            raise Refused(f"{what}: NVML error {code}")

    def memory(self, index=0):
        m = self.Memory()
        self._check(self.lib.nvmlDeviceGetMemoryInfo(self.handles[index], ctypes.byref(m)), "nvmlDeviceGetMemoryInfo")
        return m

    def processes(self, index=0):
        """Pids of the processes with a CUDA context, in this pid namespace."""
        count = ctypes.c_uint(256)
        found = (self.Process * count.value)()
        ask = self.lib.nvmlDeviceGetComputeRunningProcesses_v3
        self._check(ask(self.handles[index], ctypes.byref(count), found), "nvmlDeviceGetComputeRunningProcesses")
        return {found[i].pid for i in range(count.value)}

    def driver_reserved(self, index=0):
        """Bytes that the driver reserves; 0 where it does not report them (before 510)."""
        m = self.MemoryV2(version=ctypes.sizeof(self.MemoryV2) | 2 << 24)
        ask = getattr(self.lib, "nvmlDeviceGetMemoryInfo_v2", None)
        return m.reserved if ask and ask(self.handles[index], ctypes.byref(m)) == 0 else 0

    def name(self, index=0):
        text = ctypes.create_string_buffer(96)
        self._check(self.lib.nvmlDeviceGetName(self.handles[index], text, 96), "nvmlDeviceGetName")
        return text.value.decode()

    def driver(self):
        text = ctypes.create_string_buffer(80)
        self._check(self.lib.nvmlSystemGetDriverVersion(text, 80), "nvmlSystemGetDriverVersion")
        return text.value.decode()


def open_nvml():
    try:
        return Nvml()
    except OSError as error:
        raise Refused(f"no NVIDIA driver here: {error}") from None


class Allowance:
    """The managed memory of all programs that run at once: together never more than a quarter of the free memory, since
    no limit is handed out that is not taken from it. On several GPUs: of each, by the one with the least free memory.
    Thread-safe.
    """

    def __init__(self, nvml):
        self.nvml, self.changed = nvml, threading.Condition()
        self.quarter = self.taken = self.holders = 0

    @contextlib.contextmanager
    def share(self, each=None, processes=1, at_once=1, wait=True):
        """The variables of a program whose `processes` on a GPU allocate up to `each` managed bytes; None: the part of
        one of `at_once` equal programs. Waits until that is free. Refused if it exceeds the quarter, or, without
        `wait`, the rest of it.
        """
        with self.changed:
            while True:
                if self.holders == 0:  # measured beside no program of ours
                    settle(self.nvml)
                    free = min(self.nvml.memory(i).free for i in range(len(self.nvml.handles)))
                    self.quarter = min(free // 4, MAX_MANAGED)
                wanted = self.quarter // at_once if each is None else each * processes
                left = self.quarter - self.taken
                if wanted <= left:
                    break
                if wanted > self.quarter or not wait:
                    raise Refused(
                        f"{wanted / GIB:.1f} GiB of managed memory requested; a quarter of the free memory is "
                        f"{self.quarter / GIB:.1f} GiB, of which {left / GIB:.1f} are left"
                    )
                self.changed.wait()
            self.taken += wanted
            self.holders += 1
        try:
            # The hook takes 0 for no limit.
            yield {"SLUICE_MANAGED_LIMIT": str(max(wanted // processes, 1))}
        finally:
            with self.changed:
                self.taken -= wanted
                self.holders -= 1
                self.changed.notify_all()


class Sampler:
    """The highest used memory of GPU 0 while it is open, minus `baseline`."""

    def __init__(self, nvml, baseline):
        self.nvml, self.baseline, self.highest, self.samples = nvml, baseline, 0, 0
        self.stop = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self):
        while not self.stop.wait(0.1):
            self.highest = max(self.highest, self.nvml.memory().used - self.baseline)
            self.samples += 1

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def settle(nvml, seconds=3.0):
    """Used bytes once the memory of ended processes is released."""
    last, since = nvml.memory().used, time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.2)
        now = nvml.memory().used
        if now == last:
            return now
        last = now
    return last


def run(command, env, seconds=60, cwd=None):
    """Runs under timeout(1), so that no program outlives its minute. Returns (status, stdout, stderr, seconds)."""
    begin = time.monotonic()
    done = subprocess.run(
        ["timeout", "-k", "2", str(seconds)] + command,
        env={**os.environ, **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - begin
