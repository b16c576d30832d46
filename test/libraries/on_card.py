"""Runs a program of this folder on the simulated GPU over the fake libraries; shared by the tests of this folder."""

import os
import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(sys.argv[1]).resolve()
MIB = 1 << 20
# Remote access is off, so operands are fetched and the fetched bytes can be counted.
HOOK = {"LD_PRELOAD": str(BUILD / "lib" / "libsluice.so"), "SLUICE_MEMORY_FACTOR": "100", "SLUICE_HOST_ACCESS": "0"}


def run(program, driver="simgpu", fails=False, arguments=(), **more):
    """(stdout, stderr) of a run that must succeed; with `fails`, its status."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    libraries = BUILD / "test" / "libraries"
    env["LD_LIBRARY_PATH"] = f"{BUILD}/lib/{driver}:{libraries}/libraries:{libraries}/libraries12"
    env["SIMGPU_PROFILE"] = "card-8g"
    env.update(more)
    done = subprocess.run([BUILD / "test" / program, *arguments], env=env, capture_output=True, text=True, timeout=240)
    if fails:
        return done.returncode
    if done.returncode != 0 or not done.stdout.endswith("done\n"):
        sys.exit(f"{more}: status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}")
    return done.stdout, done.stderr


def pairs(log, event):
    """The numbers of the last logfmt line of this event: key to int or float."""
    lines = [line for line in log.splitlines() if re.search(rf"\b{event} \w+=", line)]
    if not lines:
        sys.exit(f"no line '{event}' in\n{log[-3000:]}")
    found = re.findall(r"(\w+)=(\d+(?:\.\d+)?)(?= |$)", lines[-1])
    return {key: float(value) if "." in value else int(value) for key, value in found}
