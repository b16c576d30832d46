"""Random calls under pressure, on the simulated card with its misuse detector on: random_test.py BUILD [SEED [CALLS]]

Each seed without the hook, and hooked in several ways: the same statuses, the same contents, and no launch that a call made faults."""
import re
import sys

import on_card
from on_card import MIB

seeds = [int(sys.argv[2])] if len(sys.argv) > 2 else range(1, 5)
calls = sys.argv[3] if len(sys.argv) > 3 else "5000"
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_GPU_MEMORY": str(256 * MIB)}
known = doubted = 0
for seed in seeds:
    def run(**settings):
        return on_card.run("libraries_random_program", arguments=(str(seed), calls), **settings)
    plain, _ = run()
    single = {"SLUICE_READ_MOSTLY": "0"}
    for what, settings in (("at launch", {"SLUICE_PREFETCH": "launch", **single}), ("with prediction", single),
                           ("nothing renewed", {"SLUICE_OVERWRITES": "0", **single}), ("duplicates", {"MAY_FAULT": "1"})):
        out, said = run(**{**hook, **settings})
        if out != plain:
            sys.exit(f"seed {seed}, {what}: it computes something else\n{plain}\n{out}\n{said[-3000:]}")
        found = re.search(r"library calls: (\d+) described, .*; not known: (\d+) null operand, (\d+) strange, (\d+) descriptor", said)
        counted = [int(n) for n in found.groups()]
        if not all(counted):
            sys.exit(f"seed {seed}, {what}: nonsense of some kind was not counted: {found[0]}")
        known, doubted = known + counted[0] - sum(counted[1:]), doubted + sum(counted[1:])
print(f"{known} calls known, {doubted} doubted")
# The card sees it where nothing is fetched before a launch: the test can fail.
if on_card.run("libraries_random_program", fails=True, arguments=("1", "500"), **hook, SLUICE_PREFETCH="off") == 0:
    sys.exit("launches that faulted went unnoticed")
