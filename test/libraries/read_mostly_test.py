"""Duplicates of what copies loaded, and what ends them, under pressure: read_mostly_test.py BUILD"""
import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_read_mostly_program")
hook = {**on_card.HOOK, "SLUICE_GPU_MEMORY": str(512 * MIB)}
for what, settings in (("at launch", {"SLUICE_PREFETCH": "launch", "DUPLICATES": "1"}), ("with prediction", {"DUPLICATES": "1"}),
                       ("two cards", {"SIMGPU_PROFILE": "two-gpu", "DUPLICATES": "1"}), ("an older driver", {"driver": "simgpu-550", "DUPLICATES": "1"}),
                       ("switched off", {"SLUICE_READ_MOSTLY": "0"}), ("by faults", {"SLUICE_PREFETCH": "off"}),
                       ("it fits", {"SLUICE_GPU_MEMORY": str(2048 * MIB)})):
    out, said = run(**{**hook, **settings})
    plain, _ = run(**{key: settings[key] for key in settings.keys() & {"driver", "SIMGPU_PROFILE"}})
    print(what, said, sep="\n")
    if out != plain:
        sys.exit(f"{what}: it computes something else\n{plain}\n{out}")
