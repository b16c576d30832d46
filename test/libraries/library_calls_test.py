"""Library calls through the shipped shim and engine on the simulated GPU: library_calls_test.py BUILD"""
import re
import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_library_program")
run()
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG"}
_, log = run(**hook, SLUICE_GPU_MEMORY=str(576 * MIB), UNDER_PRESSURE="1")
print(log)
known = re.search(r"access known ([0-9.]+) %", log)
calls = re.search(r"library calls: (\d+) described, (\d+) launches made by them; .*?: (\d+); not known: "
                  r"(\d+) null operand, (\d+) strange, (\d+) descriptor not seen, (\d+) pointer array", log)
if not known or float(known[1]) < 100:
    sys.exit("some access is not known")
if not calls or [int(n) for n in calls.groups()] != [8, 7, 1, 0, 1, 0, 0]:
    sys.exit(f"counters: {calls and calls.groups()}")
# A process with known library calls may fill its budget, unless a setting says otherwise.
_, log = run(**{**hook, "SLUICE_MEMORY_FACTOR": ""}, SLUICE_GPU_MEMORY=str(576 * MIB))
if not re.search(r"\bfactor 100\b", log):
    sys.exit(f"the memory factor with known library calls: {log[-600:]}")
# While everything fits, no call is described and the program does the same.
if "library calls" in run(**hook, SLUICE_GPU_MEMORY=str(4 << 30))[1]:
    sys.exit("calls were described while everything fitted")
# Without fetches before a launch, the simulated GPU reports the faults: the test can fail.
if run(fails=True, **hook, SLUICE_GPU_MEMORY=str(576 * MIB), SLUICE_PREFETCH="off") == 0:
    sys.exit("launches that faulted were not reported")
