#!/usr/bin/env python3
"""Checkpoints of a process on a real GPU, by its memory: experiments/probes/checkpoint.py [--build DIR].

A child allocates 256 MiB and fills them; its parent locks, checkpoints, restores and unlocks it (cuCheckpointProcess*,
CUDA 12.8 and later), and the child then checks its contents and works on. Prints a row a case, with the driver's
codes (0: success). The cases: unmanaged memory, managed memory, memory under the hook, the same where the parent has
the hook too, and where both have SLUICE_UNMANAGED=1; the last three need --build. Each case runs under `timeout -k 2
60`, and the managed memory of each is 256 MiB.
"""

import argparse
import ctypes
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

BYTES = 256 << 20
PATTERN = 0x5A5A1234
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
CASES = ("plain", "managed", "hooked", "both-hooked", "unmanaged")


def driver():
    cuda = ctypes.CDLL("libcuda.so.1")
    status = cuda.cuInit(0)
    if status != 0:
        sys.exit(f"checkpoint: cuInit: CUDA error {status}")
    return cuda


def child(kind):
    cuda, context, pointer = driver(), ctypes.c_void_p(), ctypes.c_ulonglong()

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            print(f"{name}: CUDA error {status}", flush=True)
            sys.exit(1)

    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    if kind == "managed":
        call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(BYTES), 1)
    else:
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(BYTES))
    call("cuMemsetD32_v2", pointer, ctypes.c_uint(PATTERN), ctypes.c_size_t(BYTES // 4))
    call("cuCtxSynchronize")
    print("READY", flush=True)
    sys.stdin.readline()
    host = (ctypes.c_uint * (BYTES // 4))()
    call("cuMemcpyDtoH_v2", host, pointer, ctypes.c_size_t(BYTES))
    held = bytes(host) == PATTERN.to_bytes(4, "little") * (BYTES // 4)
    call("cuMemsetD32_v2", pointer, ctypes.c_uint(7), ctypes.c_size_t(BYTES // 4))
    call("cuMemcpyDtoH_v2", host, pointer, ctypes.c_size_t(64))
    print("values held, works on" if held and host[0] == 7 else "WRONG VALUES", flush=True)


def case(kind):
    """In a process of its own. The parent must not hang where the child does."""
    hook = os.environ.get("PROBE_HOOK", "")
    env = {**os.environ, "SLUICE_MANAGED_LIMIT": "1Gi"}
    if kind in ("hooked", "both-hooked", "unmanaged"):
        env["LD_PRELOAD"] = hook
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", kind],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()

    def line(seconds):
        try:
            return lines.get(timeout=seconds).strip()
        except queue.Empty:
            return "no answer"

    row = [kind]
    if (output := line(20)) != "READY":
        row += [""] * 5 + [output]
    else:
        cuda = driver()
        row += [code_and_time(cuda, step, process.pid) for step in STEPS]
        state = ctypes.c_int(-1)
        status = cuda.cuCheckpointProcessGetState(process.pid, ctypes.byref(state))
        row.append(STATES.get(state.value, str(state.value)) if status == 0 else f"error {status}")
        process.stdin.write("\n")
        process.stdin.flush()
        row.append(line(10))
    print("| " + " | ".join(row) + " |", flush=True)
    process.kill()
    os._exit(0)  # a thread of the driver's may wait for the child


def code_and_time(cuda, step, pid):
    """Each step is tried, whatever the one before gave: a process that was locked must be unlocked."""
    arguments = (ctypes.c_uint * 64)()  # larger than each step's, whose reserved fields must be zero
    if step == "Lock":
        arguments[0] = 5000  # timeoutMs
    begin = time.monotonic()
    status = getattr(cuda, "cuCheckpointProcess" + step)(pid, arguments)
    return f"{status} ({(time.monotonic() - begin) * 1e3:.0f} ms)"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--build", default="", help="folder with lib/libsluice.so")
    p.add_argument("--case", default="", help=argparse.SUPPRESS)
    p.add_argument("--child", default="", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.child:
        return child(o.child)
    if o.case:
        return case(o.case)
    hook = pathlib.Path(o.build).resolve() / "lib" / "libsluice.so"
    if o.build and not hook.exists():
        sys.exit(f"checkpoint: {hook} is missing")
    print(
        "| memory | lock | checkpoint | restore | unlock | state | the child |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for kind in CASES if o.build else CASES[:2]:
        env = {**os.environ, "PROBE_HOOK": str(hook), "SLUICE_MANAGED_LIMIT": "1Gi"}
        if kind in ("both-hooked", "unmanaged"):
            env["LD_PRELOAD"] = str(hook)
        if kind == "unmanaged":
            env["SLUICE_UNMANAGED"] = "1"
        command = ["timeout", "-k", "2", "60", sys.executable, __file__, "--case", kind]
        if (status := subprocess.run(command, env=env, stdin=subprocess.DEVNULL).returncode) != 0:
            print(
                f"| {kind} | ended with status {status}{' (killed: it hung)' if status in (124, 137) else ''} |",
                flush=True,
            )


main()
