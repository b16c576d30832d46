"""Results that library calls overwrite whole, under pressure: overwrites_test.py BUILD"""

import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_overwrite_program")
unhooked, _ = run()
hook = {**on_card.HOOK, "SLUICE_GPU_MEMORY": str(512 * MIB)}
# Without prefetches, only the fetches for a call count.
counted = {"SLUICE_PREFETCH": "launch", "UNDER_PRESSURE": "1"}
CASES = {
    "results not fetched": {**counted, "NO_FETCH_OF_RESULTS": "1"},
    "switched off": {**counted, "SLUICE_OVERWRITES": "0"},
    "a driver without discard": {**counted, "driver": "simgpu-550"},
    "with prediction": {},
    "with remote access": {"SLUICE_HOST_ACCESS": "1"},
}
for case, settings in CASES.items():
    out, log = run(**{**hook, **settings})
    print(case, log, sep="\n")
    if out != unhooked:
        sys.exit(f"{case}: the results differ\n{unhooked}\n{out}")
