"""A program of this folder on the simulated card, over the libraries in miniature: what the tests of this folder share."""
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(sys.argv[1]).resolve()
MIB = 1 << 20
# Operands are fetched (none is used in host memory), so what came can be counted.
HOOK = {"LD_PRELOAD": str(BUILD / "lib" / "libsluice.so"), "SLUICE_MEMORY_FACTOR": "100", "SLUICE_HOST_ACCESS": "0"}


def run(program, driver="simgpu", fails=False, arguments=(), **more):
    """(stdout, stderr) of a run that must end well; its status where it may fail."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    env["LD_LIBRARY_PATH"] = f"{BUILD}/lib/{driver}:{BUILD}/test/libraries/libraries:{BUILD}/test/libraries/libraries12"
    env["SIMGPU_PROFILE"] = "card-8g"
    env.update(more)
    done = subprocess.run([BUILD / "test" / program, *arguments], env=env, capture_output=True, text=True, timeout=240)
    if fails:
        return done.returncode
    if done.returncode != 0 or not done.stdout.endswith("done\n"):
        sys.exit(f"{more}: status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}")
    return done.stdout, done.stderr
