"""Library calls through the shipped shim and engine on the simulated card: library_calls_test.py BUILD"""
import os
import pathlib
import re
import subprocess
import sys

build = pathlib.Path(sys.argv[1]).resolve()
MIB = 1 << 20


def run(fails=False, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    env["LD_LIBRARY_PATH"] = f"{build}/lib/simgpu:{build}/test/dnn/libraries:{build}/test/dnn/libraries12"
    env["SIMGPU_PROFILE"] = "card-8g"
    env.update(more)
    done = subprocess.run([build / "test" / "dnn_library_program"], env=env, capture_output=True, text=True, timeout=120)
    if fails:
        return done.returncode
    if done.returncode != 0 or done.stdout != "done\n":
        sys.exit(f"status {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return done.stderr


run()
hook = {"LD_PRELOAD": str(build / "lib" / "libsluice.so"), "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_MEMORY_FACTOR": "100"}
# Operands are fetched (SLUICE_HOST_ACCESS=0: none is used in host memory), so what came can be counted.
said = run(**hook, SLUICE_GPU_MEMORY=str(576 * MIB), SLUICE_HOST_ACCESS="0", UNDER_PRESSURE="1")
print(said)
known = re.search(r"access known ([0-9.]+) %", said)
calls = re.search(r"library calls: (\d+) described, (\d+) launches made by them; .*?: (\d+); not known: (\d+) null operand, (\d+) strange, "
                  r"(\d+) descriptor not seen, (\d+) pointer array", said)
if not known or float(known[1]) < 100:
    sys.exit("access is not known")
if not calls or [int(n) for n in calls.groups()] != [8, 7, 1, 0, 1, 0, 0]:
    sys.exit(f"counters: {calls and calls.groups()}")
# While everything fits, no call is described and the program does the same.
if "library calls" in run(**hook, SLUICE_GPU_MEMORY=str(4 << 30)):
    sys.exit("calls were described while everything fitted")
# The card sees it where nothing is fetched before a launch: the test can fail.
if run(fails=True, **hook, SLUICE_GPU_MEMORY=str(576 * MIB), SLUICE_PREFETCH="off", SLUICE_HOST_ACCESS="0") == 0:
    sys.exit("launches that faulted went unnoticed")
