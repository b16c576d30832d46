"""Read-mostly duplicates of copied memory, and the end of their advice, under pressure: read_mostly_test.py BUILD"""

import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_read_mostly_program")
hook = {**on_card.HOOK, "SLUICE_GPU_MEMORY": str(512 * MIB)}
CASES = {
    "at launch": {"SLUICE_PREFETCH": "launch", "DUPLICATES": "1"},
    "with prediction": {"DUPLICATES": "1"},
    "two GPUs": {"SIMGPU_PROFILE": "two-gpu", "DUPLICATES": "1"},
    "an older driver": {"driver": "simgpu-550", "DUPLICATES": "1"},
    "switched off": {"SLUICE_READ_MOSTLY": "0"},
    "demand paging": {"SLUICE_PREFETCH": "off"},
    "everything fits": {"SLUICE_GPU_MEMORY": str(2048 * MIB)},
}
for case, settings in CASES.items():
    out, log = run(**{**hook, **settings})
    unhooked, _ = run(**{key: settings[key] for key in settings.keys() & {"driver", "SIMGPU_PROFILE"}})
    print(case, log, sep="\n")
    if out != unhooked:
        sys.exit(f"{case}: the results differ\n{unhooked}\n{out}")
