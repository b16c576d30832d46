"""Library calls in captured graphs, through the shipped shim and engine on the simulated card: graphs_test.py BUILD"""
import re
import sys
from functools import partial

import on_card

run = partial(on_card.run, "libraries_graph_program")
run()
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_GPU_MEMORY": str(1 << 30), "SLUICE_PREFETCH": "launch"}
_, said = run(**hook, UNDER_PRESSURE="1")
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
