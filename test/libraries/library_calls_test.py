"""Library calls through the shipped shim and engine on the simulated card: library_calls_test.py BUILD"""
import re
import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_library_program")
run()
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG"}
_, said = run(**hook, SLUICE_GPU_MEMORY=str(576 * MIB), UNDER_PRESSURE="1")
print(said)
known = re.search(r"access known ([0-9.]+) %", said)
calls = re.search(r"library calls: (\d+) described, (\d+) launches made by them; .*?: (\d+); not known: (\d+) null operand, (\d+) strange, "
                  r"(\d+) descriptor not seen, (\d+) pointer array", said)
if not known or float(known[1]) < 100:
    sys.exit("access is not known")
if not calls or [int(n) for n in calls.groups()] != [8, 7, 1, 0, 1, 0, 0]:
    sys.exit(f"counters: {calls and calls.groups()}")
# A process whose library calls were seen may fill its budget, where no setting says otherwise.
_, said = run(**{**hook, "SLUICE_MEMORY_FACTOR": ""}, SLUICE_GPU_MEMORY=str(576 * MIB))
if not re.search(r"\bfactor 100\b", said):
    sys.exit(f"the factor where library calls were seen: {said[-600:]}")
# While everything fits, no call is described and the program does the same.
if "library calls" in run(**hook, SLUICE_GPU_MEMORY=str(4 << 30))[1]:
    sys.exit("calls were described while everything fitted")
# The card sees it where nothing is fetched before a launch: the test can fail.
if run(fails=True, **hook, SLUICE_GPU_MEMORY=str(576 * MIB), SLUICE_PREFETCH="off") == 0:
    sys.exit("launches that faulted went unnoticed")
