"""Library calls through the shipped shim and engine on the simulated GPU: library_calls_test.py BUILD"""

import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_library_program")
run()
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG"}
_, log = run(**hook, SLUICE_GPU_MEMORY=str(576 * MIB), UNDER_PRESSURE="1")
print(log)
if on_card.pairs(log, "exit")["known_percent"] < 100:
    sys.exit("some access is not known")
calls = on_card.pairs(log, "library_calls")
if list(calls.values()) != [8, 7, 1, 0, 1, 0, 0, 0]:
    sys.exit(f"counters: {calls}")
# A process with known library calls may fill its budget, unless a setting says otherwise.
_, log = run(**{**hook, "SLUICE_MEMORY_FACTOR": ""}, SLUICE_GPU_MEMORY=str(576 * MIB))
if on_card.pairs(log, "exit")["factor"] != 100:
    sys.exit(f"the memory factor with known library calls: {log[-600:]}")
# While everything fits, no call is described and the program does the same.
if "library_calls" in run(**hook, SLUICE_GPU_MEMORY=str(4 << 30))[1]:
    sys.exit("calls were described while everything fitted")
# Without fetches before a launch, the simulated GPU reports the faults: the test can fail.
if run(fails=True, **hook, SLUICE_GPU_MEMORY=str(576 * MIB), SLUICE_PREFETCH="off") == 0:
    sys.exit("launches that faulted were not reported")
