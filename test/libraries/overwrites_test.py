"""Results that library calls overwrite whole, under pressure: overwrites_test.py BUILD"""
import sys
from functools import partial

import on_card
from on_card import MIB

run = partial(on_card.run, "libraries_overwrite_program")
plain, _ = run()
hook = {**on_card.HOOK, "SLUICE_GPU_MEMORY": str(512 * MIB)}
# What comes for a call alone: nothing ahead of it.
counted = {"SLUICE_PREFETCH": "launch", "UNDER_PRESSURE": "1"}
for what, settings in (("renewed", {**counted, "RENEWS": "1"}), ("switched off", {**counted, "SLUICE_OVERWRITES": "0"}),
                       ("a driver without discard", {**counted, "driver": "simgpu-550"}), ("with prediction", {}),
                       ("with host access", {"SLUICE_HOST_ACCESS": "1"})):
    out, said = run(**{**hook, **settings})
    print(what, said, sep="\n")
    if out != plain:
        sys.exit(f"{what}: it computes something else\n{plain}\n{out}")
