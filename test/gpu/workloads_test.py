#!/usr/bin/env python3
"""Without a GPU: a RESULT line has bits and no NaN; a benchmark fails if one of its programs crashed; ratios."""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import pack_parts
import ratios

WORKLOADS = pathlib.Path(__file__).resolve().parent / "workloads"


def print_result(values):
    return subprocess.run(
        [sys.executable, "-c", f"from common import result; result({values}, 7)"],
        cwd=WORKLOADS,
        capture_output=True,
        text=True,
    )


fine = print_result("[1.5, 3, 'a']")
assert fine.returncode == 0, fine
line = json.loads(fine.stdout.removeprefix("RESULT "))
assert line["values"] == ["0x1.8000000000000p+0", 3, "a"] and line["live_bytes"] == 7, line
refused = print_result("[1.5, float('nan')]")
assert refused.returncode == 1 and "RESULT" not in refused.stdout and "not a number" in refused.stderr, refused

loader = importlib.machinery.SourceFileLoader("gpu_run", str(WORKLOADS.parent / "run"))
gpu_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
sys.dont_write_bytecode = True  # `run` has no module name
loader.exec_module(gpu_run)


class Session:
    """Programs whose name determines their status."""

    def __init__(self):
        self.results = {"correctness": [], "benchmarks": []}

    def left(self):
        return 1000

    def start(self, command, env, label, seconds=60):
        crashed, skipped = "crashes" in label, "skips" in label
        result = None if crashed else {"skipped": "no such package"} if skipped else {"step_ms": [1.0, 2.0]}
        return {
            "status": 134 if crashed else 0,
            "result": result,
            "stderr": "terminate called",
            "out_gib": None,
            "in_gib": None,
        }

    def save(self):
        pass


for second, fails in (("too", False), ("crashes", True), ("skips", False)):
    session = Session()
    gpu_run.benchmark(
        session,
        {
            "name": "row",
            "command": [],
            "rounds": 1,
            "figure": "step",
            "variants": {"runs": {}, second: {}},
            "ratio": ("runs", second),
        },
    )
    assert bool(gpu_run.failed(session.results)) == fails, (second, session.results)

# Ten runs, of which one is odd: Student's interval with 9 degrees of freedom is 2.262 standard errors wide.
pairs = [(a, 100) for a in (100, 104, 92, 105, 98, 100, 93, 95, 120, 96)]
mean, low, high = ratios.interval([a / b for a, b in pairs])
assert abs(mean - 0.9998) < 1e-3 and abs(low - 0.946) < 2e-3 and abs(high - 1.056) < 2e-3, (mean, low, high)
middle, low, high = ratios.of_medians(pairs)
assert middle == 0.99 and 0.93 <= low < 0.97 and 1 < high <= 1.05, (middle, low, high)
assert ratios.interval([1.1])[1:] == (0, float("inf")), ratios.interval([1.1])

# A pack in parts: one comes with the call, the others were kept by calls before.
with tempfile.TemporaryDirectory() as folder:
    pack, kept = pathlib.Path(folder) / "pack", pathlib.Path(folder) / "kept"
    pack.mkdir()
    archive = pack / "it.tar.xz"
    archive.write_bytes(bytes(range(100)))
    assert pack_parts.split(archive, 100) == [] and archive.exists()
    parts = pack_parts.split(archive, 40)
    assert [p.name for p in parts] == ["0", "1", "2"] and not archive.exists(), parts
    assert pack_parts.found_in("it.tar.xz", parts[2], kept)[1].startswith("part 0, 1 of it.tar.xz"), parts
    for part in parts[:2]:
        assert len(pack_parts.keep(part, kept)) == 1
    found, missing = pack_parts.found_in("it.tar.xz", parts[2], kept)
    assert not missing and b"".join(p.read_bytes() for p in found) == bytes(range(100)), (found, missing)
    assert pack_parts.found_in("other", parts[2], kept) == ([], "there is no other, and no part of it")
