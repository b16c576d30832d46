#!/usr/bin/env python3
"""What the workloads share, without a card: a RESULT line carries bits, and no value that is equal to nothing."""
import json
import pathlib
import subprocess
import sys

WORKLOADS = pathlib.Path(__file__).resolve().parent / "workloads"


def said(values):
    return subprocess.run([sys.executable, "-c", f"from common import result; result({values}, 7)"], cwd=WORKLOADS, capture_output=True, text=True)


fine = said("[1.5, 3, 'a']")
assert fine.returncode == 0, fine
line = json.loads(fine.stdout.removeprefix("RESULT "))
assert line["values"] == ["0x1.8000000000000p+0", 3, "a"] and line["live_bytes"] == 7, line
refused = said("[1.5, float('nan')]")
assert refused.returncode == 1 and "RESULT" not in refused.stdout and "not a number" in refused.stderr, refused
