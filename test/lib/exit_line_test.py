#!/usr/bin/env python3
"""Both forms of the exit line give the same figures."""

import exit_line

SENTENCE = (
    "sluice: exit pid 729 GPU-1: budget 4.00 GiB, live 5.50 GiB (peak 5.75 GiB), plain 0.25 GiB, in 37.50 GiB, "
    "out 41.50 GiB, without copy 22.25 GiB, faults 0.50 GiB (counted), hits 95.3 %, stalls 1.25 s, "
    "access known 100.0 %, factor 80, launches 12990, over budget 3, left to faults 0, in place 1.00 GiB (tried 13, "
    "2 of them slow and 5 ms lost; mapping took 7 ms)"
)
GIB = 1 << 30
FIGURES = {
    "pid": 729,
    "gpu": "GPU-1",
    "budget_bytes": 4 * GIB,
    "live_bytes": int(5.5 * GIB),
    "live_peak_bytes": int(5.75 * GIB),
    "unmanaged_bytes": GIB // 4,
    "fetched_bytes": int(37.5 * GIB),
    "evicted_bytes": int(41.5 * GIB),
    "saved_bytes": int(22.25 * GIB),
    "fault_bytes": GIB // 2,
    "stall_seconds": 1.25,
    "factor": 80,
    "launches": 12990,
    "launches_over_budget": 3,
}
LOGFMT = "sluice: exit " + " ".join(f"{key}={value}" for key, value in FIGURES.items()) + ' note="a \\"b\\" c=d" empty='

assert exit_line.parse(SENTENCE) == [FIGURES], exit_line.parse(SENTENCE)
logfmt = exit_line.parse("before\n" + LOGFMT + "\nafter exit pid=1 of another program\n")
assert logfmt == [{**FIGURES, "note": 'a "b" c=d', "empty": ""}], logfmt
both = exit_line.parse(f"{SENTENCE}\nsluice: WARN something\n{LOGFMT}")
assert exit_line.total(both, "fetched_bytes") == 75 * GIB, both
assert exit_line.total(both, "absent") is None
assert exit_line.parse("sluice: exit pid=1 out_bytes=5 written_back_bytes=6")[0]["evicted_bytes"] == 5
assert exit_line.attached(SENTENCE) and not exit_line.attached("sluice: now pid 729 GPU-1: budget 4.00 GiB\nexit pid 3")
