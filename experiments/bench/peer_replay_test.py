#!/usr/bin/env python3
"""ctest: peer_replay_test.py BUILD. A GPU made to look as large as the budget moves as much as one of that size."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

MIB = 1 << 20
build = pathlib.Path(sys.argv[1]).resolve()
trace = pathlib.Path(__file__).resolve().parent.parent.parent / "experiments" / "traces" / "decode.sltrace"
budget = 1342


def play(*arguments, **env):
    command = [str(build / "test" / "peer_replay"), str(trace), "--budget-mib", str(budget), "--steps", "4", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), **env},
        capture_output=True,
        text=True,
    )


def figures(*arguments, **env):
    done = play(*arguments, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["simulated"]


with tempfile.NamedTemporaryFile("w", suffix=".profile") as profile:
    profile.write(f"memory = {(budget + 192) * MIB}\nreserve = {64 * MIB}\ncontext_bytes = {128 * MIB}\n")
    profile.flush()
    small = figures("--rules", "uvm", SIMGPU_PROFILE=profile.name)
held = figures("--rules", "uvm", "--larger-card")
assert small["driver_evicted_bytes"] > 0 and held["driver_evicted_bytes"] == 0, (small, held)
assert abs(held["fault_bytes"] / small["fault_bytes"] - 1) < 0.02, (small["fault_bytes"], held["fault_bytes"])
assert abs(held["prefetch_out_bytes"] / small["driver_evicted_bytes"] - 1) < 0.02, (
    small["driver_evicted_bytes"],
    held["prefetch_out_bytes"],
)
assert held["resident_peak_bytes"] <= budget * MIB, held["resident_peak_bytes"]
pump = figures("--rules", "pump", "--larger-card")
assert pump["driver_evicted_bytes"] == 0 and pump["prefetch_in_bytes"] > 0 and pump["prefetch_out_bytes"] > 0, pump
refused = play("--rules", "pump", "--larger-card", SLUICE_MANAGED_LIMIT=str(1024 * MIB))
assert refused.returncode == 1 and "out of memory" in refused.stderr, refused.stderr
print(f"{held['fault_bytes'] / MIB:.0f} MiB a step by faults, {small['fault_bytes'] / MIB:.0f} on a card of that size")
