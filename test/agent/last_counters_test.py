#!/usr/bin/env python3
"""The agent keeps a process's counters up to its end: last_counters_test.py BUILD.

Compares the line that the hook prints at exit with `sluice status` after it, on a simulated GPU.
"""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import exit_line

BUILD = pathlib.Path(sys.argv[1]).resolve()
TRACE = pathlib.Path(__file__).resolve().parents[2] / "experiments/traces/transformer.sltrace"


def main():
    with tempfile.TemporaryDirectory(prefix="sluice-last-") as scratch:
        folder = pathlib.Path(scratch)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
        env.update(SIMGPU_PROFILE="card-8g", SIMGPU_STATE=str(folder / "state"))
        run_dir = ("--run-dir", str(folder / "run"))
        agent = subprocess.Popen(
            [
                BUILD / "bin/sluice-agent",
                *run_dir,
                "--alloc-dir",
                folder / "alloc",
                "--nvml",
                BUILD / "lib/simgpu/libnvidia-ml.so.1",
                "--quiet",
            ],
            env=env,
        )
        try:
            end = time.monotonic() + 30
            while subprocess.run([BUILD / "bin/sluice", "status", *run_dir], env=env, capture_output=True).returncode:
                assert time.monotonic() < end, "the agent does not answer"
                time.sleep(0.1)
            # The allocation lasts as long as the shell; its program has ended when `sluice status` runs.
            status = shlex.join(
                ["env", "-u", "LD_PRELOAD", str(BUILD / "bin/sluice"), "status", "-o", "json", *run_dir]
            )
            script = f"{shlex.join([str(BUILD / 'bin/sluice-replay'), str(TRACE), '--steps', '2'])} >&2; {status}"
            done = subprocess.run(
                [BUILD / "bin/sluice", "run", *run_dir, "--gpu", "sim", "--memory", "3Gi", "--", "sh", "-c", script],
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done
            (line,) = exit_line.parse(done.stderr)
            kept = json.loads(done.stdout)["allocations"][0]["ended"][0]
            assert line["fetched_bytes"] > 1 << 30 and line["evicted_bytes"] > 1 << 30, line
            for counter in ("launches", "fetched_bytes", "evicted_bytes"):
                assert kept[counter] == line[counter], (counter, kept, line)
            print(line)
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)


if __name__ == "__main__":
    main()
