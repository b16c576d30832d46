#!/usr/bin/env python3
"""The exit line and events give their keys; other lines give none."""

import exit_line

FIGURES = {
    "pid": 729,
    "gpu": "GPU-1",
    "budget_bytes": 4 << 30,
    "live_bytes": 5 << 30,
    "live_peak_bytes": 6 << 30,
    "unmanaged_bytes": 1 << 28,
    "fetched_bytes": 75 << 29,
    "evicted_bytes": 83 << 29,
    "saved_bytes": 89 << 28,
    "fault_bytes": 1 << 29,
    "fault_bytes_source": "counted",
    "hit_percent": 95.3,
    "stall_seconds": 1.25,
    "factor": 80,
    "launches": 12990,
    "launches_over_budget": 3,
}
PAIRS = " ".join(f"{key}={value}" for key, value in FIGURES.items())
LINE = f'sluice: exit {PAIRS} note="a \\"b\\" c=d" empty='
EXPECTED = {**FIGURES, "note": 'a "b" c=d', "empty": ""}

assert exit_line.parse(f"before\n{LINE}\nafter exit pid=1 of another program\n") == [EXPECTED], exit_line.parse(LINE)
assert exit_line.parse(f"2026-11-25 container | {LINE}") == [EXPECTED]
two = exit_line.parse(f"{LINE}\nsluice: WARN something\n{LINE}")
assert exit_line.total(two, "fetched_bytes") == 75 << 30, two
assert exit_line.total(two, "absent") is None
status = f"sluice: status {PAIRS}"
assert exit_line.parse(status) == [] and exit_line.parse(status, "status") == [FIGURES]
event = 'sluice: DEBUG evictions by=driver reason="it refuses, now" count=3'
assert exit_line.events(f"{LINE}\n{event}\nsluice: DEBUG evictions are made\n", "evictions") == [
    {"by": "driver", "reason": "it refuses, now", "count": 3}
]
assert exit_line.events(event, "exit") == []
said = (
    f"{event}\nsluice: WARN GPU-1: 64.00 MiB beside 1.00 GiB; memory-limit is 1.00 GiB\nsluice: WARN slow gpu=GPU-1\n"
)
(found,) = exit_line.logged(said, "WARN")
assert exit_line.logged(said, "WARN", "64.00 MiB", "memory-limit") == [found] and "memory-limit" in found
assert exit_line.logged(said, "WARN", "budget") == [] == exit_line.logged(said, "DEBUG")
assert exit_line.events(said, "slow") == [{"gpu": "GPU-1"}]
assert exit_line.attached(LINE) and not exit_line.attached(f"{status}\nexit pid=3\nsluice: exit pid 729 GPU-1: budget")
