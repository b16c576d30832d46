"""Library calls in captured graphs, through the shipped shim and engine on the simulated card: graphs_test.py BUILD"""
import os
import pathlib
import re
import subprocess
import sys

build = pathlib.Path(sys.argv[1]).resolve()


def run(driver="simgpu", fails=False, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    env["LD_LIBRARY_PATH"] = f"{build}/lib/{driver}:{build}/test/dnn/libraries"
    env["SIMGPU_PROFILE"] = "card-8g"
    env.update(more)
    done = subprocess.run([build / "test" / "dnn_graph_program"], env=env, capture_output=True, text=True, timeout=240)
    if fails:
        return done.returncode
    if done.returncode != 0 or done.stdout != "done\n":
        sys.exit(f"{more}: status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}")
    return done.stderr


run()
# Operands are fetched (SLUICE_HOST_ACCESS=0: none is used in host memory), so what came can be counted.
hook = {"LD_PRELOAD": str(build / "lib" / "libsluice.so"), "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_MEMORY_FACTOR": "100",
        "SLUICE_HOST_ACCESS": "0", "SLUICE_GPU_MEMORY": str(1 << 30), "SLUICE_PREFETCH": "launch"}
said = run(**hook, UNDER_PRESSURE="1")
print(said)
# Kernels, of library calls, places, only read; in the program's order.
learnt = [tuple(map(int, m)) for m in re.findall(
    r"a graph of (\d+) kernels, (\d+) of them known by library calls: (\d+) places, (\d+) only read", said)]
two = (2, 2, 4, 2)
expected = [(1, 1, 3, 2), two, two, two, two, (1, 1, 3, 2), (1, 1, 2, 1), two, (2, 1, 4, 2), (1, 1, 3, 2)]
if learnt[:len(expected)] != expected:
    sys.exit(f"what is known of the graphs: {learnt[:len(expected)]}, expected {expected}")
if learnt[len(expected):] != [(1, 1, 3, 2)] * 128:
    sys.exit(f"what is known of the threads' graphs: {sorted(set(learnt[len(expected):]))}")
if "kept for 0 nodes of graphs" not in said:
    sys.exit("something is kept of graphs that are gone")
# The card sees it where nothing is fetched before a launch: the test can fail.
if run(fails=True, **{**hook, "SLUICE_PREFETCH": "off"}) == 0:
    sys.exit("launches that faulted went unnoticed")
