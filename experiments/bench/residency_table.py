#!/usr/bin/env python3
"""The simulated benchmark: every recorded trace at several budgets, by every engine, on one simulated GPU.

    experiments/bench/residency_table.py [--build DIR] [--hook DIR] [--traces NAME...] [--budgets R...] [--out FILE]

Budgets are live bytes divided by R. All columns are of the same run of this program:
  uvm      managed memory alone; the GPU is as large as the budget
  faults   sluice --prefetch off: the same engine, budget and victims, but demand paging
  lru      sluice --prefetch launch: fetched at launch, the least recently used chunk is evicted
  pump     PUMP's rules (peer_replay.cc); the GPU is as large as the budget
  sluice   as shipped, with the memory factor that the recorded program would get
  bound    Belady's bytes for the last step, the future known, and the time that kernels or the link need for them.
           Clean pages are dropped at no cost, which needs a copy in host memory
  managed  the same bound where clean pages are copied out as well, as prefetches of managed memory do. In a program
           that repeats, every fetched page was evicted before, so it moves twice the fetched bytes. (The tool's own
           figure ends with the trace, after which no page is needed.) The time is at the rates of an H200's driver.
           sluice may be below both bounds: it also accesses host memory remotely, and keeps duplicates
"predicted" is the share of the truly touched bytes that the engine's access sets held; "untouched" is the share of
those sets that the launch did not touch. Both are over all launches with a truth column. Untouched bytes need not move:
"fetched, unused" is the share of sluice's prefetched bytes of the whole run that no launch or copy touched before their
eviction or the run's end, in units of 64 KiB. Times are of the simulated H200: a report; no test depends on them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
ENGINES = ("uvm", "faults", "lru", "pump", "sluice")
MANAGED_OUT, MANAGED_BOTH = 15.3e9, 28e9  # bytes a second: out, and both directions together (docs/design/driver.md)
CARD_OVERHEAD = {"reserve": 64 * MIB, "context_bytes": 128 * MIB}


class Bench:
    def __init__(self, options, folder):
        self.build, self.folder = pathlib.Path(options.build).resolve(), folder
        self.hook = pathlib.Path(options.hook).resolve() if options.hook else self.build / "lib"
        self.steps, self.warm_up = options.steps, options.warm_up

    def run(self, command, env):
        done = subprocess.run([str(c) for c in command], env={**os.environ, **env}, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(
                f"residency_table: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}"
            )
        if "LD_PRELOAD" in env and not exit_line.attached(done.stderr):
            sys.exit(f"residency_table: the hook in {env['LD_PRELOAD']} was not attached:\n{done.stderr[-2000:]}")
        return done.stdout

    def tool(self, *arguments):
        return json.loads(self.run([self.build / "bin" / "sluice-trace", *arguments, "--json"], {}))

    def play(self, trace, engine, budget):
        """Figures of one run, and the engine's access sets compared with the truth (sluice only)."""
        env = {"LD_LIBRARY_PATH": str(self.build / "lib" / "simgpu")}
        rest = ["--warm-up", self.warm_up]
        if engine in ("uvm", "pump"):
            profile = self.folder / f"card-{budget}.profile"
            lines = [f"memory = {budget + sum(CARD_OVERHEAD.values())}"] + [
                f"{key} = {value}" for key, value in CARD_OVERHEAD.items()
            ]
            profile.write_text("\n".join(lines) + "\n")
            env["SIMGPU_PROFILE"] = str(profile)
            command = [
                self.build / "test" / "peer_replay",
                trace,
                "--rules",
                engine,
                "--budget-mib",
                budget // MIB,
                *rest,
            ]
            return json.loads(self.run(command, env)), None
        # The engine sets the factor to 100 where it sees cuBLAS' and cuDNN's calls, as in the recorded programs; traces
        # hold no such calls.
        env |= {
            "LD_PRELOAD": str(self.hook / "libsluice.so"),
            "SLUICE_GPU_MEMORY": str(budget),
            "SLUICE_MEMORY_FACTOR": "100",
        }
        if engine != "sluice":
            env["SLUICE_PREFETCH"] = {"faults": "off", "lru": "launch"}[engine]
        command = [self.build / "bin" / "sluice-replay", trace, "--json", *rest] + (
            ["--steps", self.steps] if self.steps else []
        )
        figures = json.loads(self.run(command, env))
        if engine != "sluice":
            return figures, None
        # The access sets come from a run of its own: a recording sets events around each launch, which take time.
        recorded = self.folder / "recorded"
        self.run(command, env | {"SLUICE_RECORD": str(recorded)})
        return figures, self.tool("explain", trace, recorded)


def moved(figures):
    s = figures["simulated"]
    return (
        s["fault_bytes"]
        + s["prefetch_in_bytes"]
        + s["prefetch_out_bytes"]
        + s["driver_evicted_bytes"]
        + s.get("remote_bytes", 0)
    )


def row(bench, name, trace, ratio, engines):
    limit = bench.tool("bound", trace, "--budget-gib", 1)
    budget = int(limit["peak_live_bytes"] / ratio) // (2 * MIB) * 2 * MIB
    limit = bench.tool("bound", trace, "--budget-gib", budget / GIB)
    out = {
        "trace": name,
        "ratio": ratio,
        "live_bytes": limit["peak_live_bytes"],
        "budget_bytes": budget,
        "bound": limit,
        "engines": {},
    }
    for engine in engines:
        begin = time.monotonic()
        figures, predicted = bench.play(trace, engine, budget)
        out["engines"][engine] = {"ms": figures["median_ms"], "moved_bytes": moved(figures), **figures["simulated"]}
        if predicted:
            out["predicted"] = predicted
        print(
            f"   {name}, budget {budget / GIB:.2f} GiB, {engine}: {figures['median_ms']:.1f} ms a step "
            f"({time.monotonic() - begin:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
    return out


def ratio_of(row, above, below):
    engines = row["engines"]
    return engines[above]["ms"] / engines[below]["ms"] if above in engines and below in engines else None


def text(value, form):
    return "" if value is None else format(value, form)


def table(rows, engines):
    lines = [
        "| trace | live, budget GiB | "
        + " | ".join(f"{e}, ms" for e in engines)
        + " | bound, ms | managed, ms | faults / sluice "
        "| pump / sluice | moved / bound | moved / managed | predicted % | untouched % | fetched, unused % of MiB |",
        "|---|---|" + "---|" * (len(engines) + 9),
    ]
    for r in rows:
        bound, predicted = r["bound"], r.get("predicted")
        bound_bytes = bound["in_bytes"] + bound["out_bytes"]
        managed_bytes = 2 * bound["in_bytes"]
        managed_ms = max(bound["kernel_ms"], 1e3 * bound["in_bytes"] / MANAGED_OUT, 1e3 * managed_bytes / MANAGED_BOTH)
        cells = [r["trace"], f"{r['live_bytes'] / GIB:.2f}, {r['budget_bytes'] / GIB:.2f}"]
        cells += [f"{r['engines'][e]['ms']:.1f}" for e in engines] + [f"{bound['limit_ms']:.1f}", f"{managed_ms:.1f}"]
        cells += [text(ratio_of(r, "faults", "sluice"), ".2f"), text(ratio_of(r, "pump", "sluice"), ".2f")]
        for limit in (bound_bytes, managed_bytes):
            cells.append(
                f"{r['engines']['sluice']['moved_bytes'] / limit:.2f}" if limit and "sluice" in r["engines"] else ""
            )
        if predicted and predicted["touched_bytes"]:  # else the trace has no truth column
            covered = predicted["covered_bytes"]
            cells.append(f"{100 * covered / max(1, predicted['touched_bytes']):.2f}")
            cells.append(f"{100 * (1 - covered / max(1, predicted['predicted_bytes'])):.1f}")
        else:
            cells += ["", ""]
        fetched = r["engines"].get("sluice", {"total_in_bytes": 0})
        total = fetched["total_in_bytes"]
        cells.append(f"{100 * fetched['unused_in_bytes'] / total:.1f} of {total // MIB}" if total else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument(
        "--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)"
    )
    parser.add_argument("--traces", nargs="*", default=[], help="names in experiments/traces, or files (default: all)")
    parser.add_argument("--budgets", nargs="*", type=float, default=[1.5, 2, 3], help="live bytes divided by these")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = options.traces or sorted(p.stem for p in (ROOT / "experiments" / "traces").glob("*.sltrace"))
    traces = [
        (pathlib.Path(n).stem, pathlib.Path(n) if os.sep in n else ROOT / "experiments" / "traces" / f"{n}.sltrace")
        for n in names
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="sluice-table.") as scratch:
        bench = Bench(options, pathlib.Path(scratch))
        for name, trace in traces:
            for ratio in options.budgets:
                rows.append(row(bench, name, trace, ratio, options.engines))
                if options.out:
                    pathlib.Path(options.out).write_text(json.dumps(rows, indent=1))
    print(table(rows, options.engines))
    against = [ratio_of(r, "pump", "sluice") for r in rows if ratio_of(r, "pump", "sluice") is not None]
    if against:
        print(f"\nagainst PUMP's rules: median {statistics.median(against):.2f}x, minimum {min(against):.2f}x")
    misuses = sum(e["misuses"] for r in rows for e in r["engines"].values())
    if misuses:
        sys.exit(f"residency_table: the simulated GPU reported {misuses} misuses")


if __name__ == "__main__":
    main()
