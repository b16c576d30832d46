"""One run of test/gpu/run: its programs, results and files."""

import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402
import guard  # noqa: E402
import report  # noqa: E402

GIB = 1 << 30


class Session:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).resolve()
        self.out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.budget_seconds - 8
        self.nvml = guard.open_nvml()
        self.log = open(self.out / "logs.txt", "w", errors="replace")
        self.results = {
            "machine": {
                "gpus": [self.nvml.name(i) for i in range(len(self.nvml.handles))],
                "driver": self.nvml.driver(),
                "cpus": os.cpu_count(),
                "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            },
            "correctness": [],
            "benchmarks": [],
        }
        self.allowance = guard.Allowance(self.nvml)
        self.live = {}

    def left(self):
        return self.deadline - time.monotonic()

    def wanted(self, name, kind):
        only = self.options.only
        return not only or kind in only or any(o in name for o in only)

    def hook(self, budget, extra, limit):
        """The variables of a hooked program: standalone, no agent. `limit` is its share of the allowance."""
        return {
            "LD_PRELOAD": str(self.build / "lib" / "libsluice.so"),
            "SLUICE_GPU_MEMORY": str(int(budget)),
            **limit,
            **extra,
        }

    def start(self, command, env, label, seconds=60):
        for name, place in (
            ("build/bin/", f"{self.build}/bin/"),
            ("build/test/", f"{self.build}/test/"),
            ("build/gpu-bin/", f"{self.out}/bin/"),
        ):
            command = [c.replace(name, place) for c in command]
        env = {"PYTHONPATH": str(HERE / "workloads"), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **env}
        status, out, err, took = guard.run(command, env, max(5, min(seconds, int(self.left()))), cwd=ROOT)
        self.log.write(f"=== {label}: status {status}, {took:.1f} s\n{out[-4000:]}\n--- stderr\n{err[-6000:]}\n")
        self.log.flush()
        run = {
            "label": label,
            "status": status,
            "seconds": round(took, 1),
            "stdout": out,
            "stderr": err,
            "result": None,
        }
        for line in out.splitlines():
            if line.startswith("RESULT "):
                run["result"] = json.loads(line[7:])
            elif line.startswith('{"') and line.endswith("}"):  # sluice-replay's figures
                run["result"] = json.loads(line)
        lines = exit_line.parse(err)  # of several processes and GPUs: their sums
        for key, name in (("in_gib", "fetched_bytes"), ("out_gib", "evicted_bytes")):
            moved = exit_line.total(lines, name)
            run[key] = None if moved is None else moved / GIB
        return run

    def save(self):
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1))
        (self.out / "results.md").write_text(report.markdown(self.results))


def why_failed(run):
    tail = [line for line in run["stderr"].strip().splitlines() if not line.startswith("sluice") or "ERROR" in line][
        -1:
    ]
    hang = " (killed: ran past its limit)" if run["status"] in (124, 137) else ""
    return f"status {run['status']}{hang}: {tail[0][:200] if tail else 'no output'}"


def close_enough(a, b):
    """Largest relative difference of two value lists."""

    def number(v):
        return float.fromhex(v) if isinstance(v, str) else float(v)

    return (
        max((abs(number(x) - number(y)) / max(abs(number(x)), 1e-9) for x, y in zip(a, b)), default=0.0)
        if len(a) == len(b)
        else 1.0
    )
