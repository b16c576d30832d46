"""Library calls in captured graphs, through the shipped shim and engine on the simulated GPU: graphs_test.py BUILD"""

import re
import sys
from functools import partial

import on_card

run = partial(on_card.run, "libraries_graph_program")
run()
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_GPU_MEMORY": str(1 << 30), "SLUICE_PREFETCH": "launch"}
_, log = run(**hook, UNDER_PRESSURE="1")
print(log)
# Of each graph, in the program's order: kernels, kernels of library calls, places, places that are only read.
logged = [
    tuple(map(int, m))
    for m in re.findall(r"graph_access kernels=(\d+) library_kernels=(\d+) places=(\d+) read_only_places=(\d+)", log)
]
two = (2, 2, 4, 2)
expected = [(1, 1, 3, 2), two, two, two, two, (1, 1, 3, 2), (1, 1, 2, 1), two, (2, 1, 4, 2), (1, 1, 3, 2)]
if logged[: len(expected)] != expected:
    sys.exit(f"logged for the graphs: {logged[: len(expected)]}, expected {expected}")
if logged[len(expected) :] != [(1, 1, 3, 2)] * 128:
    sys.exit(f"logged for the threads' graphs: {sorted(set(logged[len(expected) :]))}")
if on_card.pairs(log, "library_calls")["captured_nodes"] != 0:
    sys.exit("the engine keeps sets of graphs that are destroyed")
# Without fetches before a launch, the simulated GPU reports the faults: the test can fail.
if run(fails=True, **{**hook, "SLUICE_PREFETCH": "off"}) == 0:
    sys.exit("launches that faulted were not reported")
