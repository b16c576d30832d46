"""Random library calls under pressure, on the simulated GPU with its misuse detector:

    random_test.py BUILD [SEED [CALLS]]

Each seed runs without the hook, and hooked in several modes. Statuses and contents must be the same, and no launch of a
call may fault."""

import sys

import on_card
from on_card import MIB

seeds = [int(sys.argv[2])] if len(sys.argv) > 2 else range(1, 5)
calls = sys.argv[3] if len(sys.argv) > 3 else "5000"
hook = {**on_card.HOOK, "SLUICE_LOG_LEVEL": "DEBUG", "SLUICE_GPU_MEMORY": str(256 * MIB)}
single = {"SLUICE_READ_MOSTLY": "0"}
CASES = {
    "at launch": {"SLUICE_PREFETCH": "launch", **single},
    "with prediction": single,
    "results fetched": {"SLUICE_OVERWRITES": "0", **single},
    "duplicates": {"MAY_FAULT": "1"},
}
known = unknown = 0
for seed in seeds:

    def run(**settings):
        return on_card.run("libraries_random_program", arguments=(str(seed), calls), **settings)

    unhooked, _ = run()
    for case, settings in CASES.items():
        out, log = run(**{**hook, **settings})
        if out != unhooked:
            sys.exit(f"seed {seed}, {case}: the results differ\n{unhooked}\n{out}\n{log[-3000:]}")
        found = on_card.pairs(log, "library_calls")
        counted = [found[key] for key in ("calls", "unknown_null_operand", "unknown_unsupported", "unknown_descriptor")]
        if not all(counted):
            sys.exit(f"seed {seed}, {case}: invalid calls of some kind were not counted: {found}")
        known, unknown = known + counted[0] - sum(counted[1:]), unknown + sum(counted[1:])
print(f"{known} calls known, {unknown} not")
# Without fetches before a launch, the simulated GPU reports the faults: the test can fail.
if on_card.run("libraries_random_program", fails=True, arguments=("1", "500"), **hook, SLUICE_PREFETCH="off") == 0:
    sys.exit("launches that faulted were not reported")
