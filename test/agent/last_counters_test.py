#!/usr/bin/env python3
"""What a process did up to its end is what the agent keeps of it: last_counters_test.py BUILD. The line that the hook prints at exit against
`sluice status` after it, on the simulated card."""
import json, os, pathlib, re, shlex, signal, subprocess, sys, tempfile, time

BUILD = pathlib.Path(sys.argv[1]).resolve()
TRACE = pathlib.Path(__file__).resolve().parents[2] / "experiments/traces/transformer.sltrace"


def main():
    with tempfile.TemporaryDirectory(prefix="sluice-last-") as scratch:
        folder = pathlib.Path(scratch)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
        env.update(SIMGPU_PROFILE="card-8g", SIMGPU_STATE=str(folder / "state"))
        run_dir = ("--run-dir", str(folder / "run"))
        agent = subprocess.Popen([BUILD / "bin/sluice-agent", *run_dir, "--alloc-dir", folder / "alloc", "--nvml",
                                  BUILD / "lib/simgpu/libnvidia-ml.so.1", "--quiet"], env=env)
        try:
            end = time.monotonic() + 30
            while subprocess.run([BUILD / "bin/sluice", "status", *run_dir], env=env, capture_output=True).returncode:
                assert time.monotonic() < end, "the agent does not answer"
                time.sleep(0.1)
            # The allocation lives as long as the shell; its process has ended when the agent is asked.
            status = shlex.join(["env", "-u", "LD_PRELOAD", str(BUILD / "bin/sluice"), "status", "-o", "json", *run_dir])
            script = f"{shlex.join([str(BUILD / 'bin/sluice-replay'), str(TRACE), '--steps', '2'])} >&2; {status}"
            done = subprocess.run([BUILD / "bin/sluice", "run", *run_dir, "--gpu", "sim", "--memory", "3Gi", "--", "sh", "-c", script], env=env,
                                  capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done
            line = re.search(r"^sluice: exit .*$", done.stderr, re.M)[0]
            kept = json.loads(done.stdout)["allocations"][0]["ended"][0]
            assert kept["launches"] == int(re.search(r"launches (\d+)", line)[1]), (kept, line)
            for way in ("in", "out"):
                gib = float(re.search(rf", {way} ([0-9.]+) GiB", line)[1])
                assert gib > 1 and abs(kept[f"bytes_{way}"] / 2**30 - gib) < 0.0051, (way, kept, line)
            print(line)
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)


if __name__ == "__main__":
    main()
