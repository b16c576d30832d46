#!/usr/bin/env python3
"""The simulated benchmark: every recorded trace at several budgets, by every engine, on one simulated card.

    experiments/bench/residency_table.py [--build DIR] [--hook DIR] [--traces NAME...] [--budgets R...] [--out FILE.json]

Budgets are live bytes divided by R. Columns, all of the same run of this program:
  uvm      managed memory and nothing else; the card is as large as the budget
  faults   sluice --prefetch off: the same engine, budget and victims, fetching left to faults
  lru      sluice --prefetch launch: fetched at launch, least recently used leaves
  pump     PUMP's rules (peer_replay.cc); the card is as large as the budget
  sluice   as shipped, with the factor that the recorded program would get
  bound    Belady's bytes for the last step, the future known, and the time that kernels or the link need for them; what was only read leaves for
           nothing, which needs a copy that stays in host memory
  managed  the same where what was only read is moved out like anything else, as prefetches of managed memory do: in a program that goes round, what
           comes has left before, so it moves twice what comes (the tool's own figure stops with the trace, behind which nothing is needed); the
           time at the rates of an H200's driver. sluice may be below both: it also uses host memory in place, and keeps duplicates
"known" is the share of truly touched bytes that lay inside the engine's access sets, "too much" the share of those sets that the launch did not
touch; both over all launches that carry the truth column. What is too much need not move: "fetched, unused" is the share of the bytes that were
moved to the card by prefetches in the whole run and that no launch or copy touched before they left again, or until the run's end (sluice's; in
units of 64 KiB, by what the card saw touched). Times are of the simulated H200: a report, no test decides by it.
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
MIB, GIB = 1 << 20, 1 << 30
ENGINES = ("uvm", "faults", "lru", "pump", "sluice")
MANAGED_OUT, MANAGED_BOTH = 15.3e9, 28e9  # bytes a second: out, and both ways together (docs/design/driver.md)
CARD_OVERHEAD = {"reserve": 64 * MIB, "context_bytes": 128 * MIB}


class Bench:
    def __init__(self, options, folder):
        self.build, self.folder = pathlib.Path(options.build).resolve(), folder
        self.hook = pathlib.Path(options.hook).resolve() if options.hook else self.build / "lib"
        self.steps, self.warm_up = options.steps, options.warm_up

    def run(self, command, env):
        done = subprocess.run([str(c) for c in command], env={**os.environ, **env}, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"residency_table: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        if "LD_PRELOAD" in env and "exit pid" not in done.stderr:
            sys.exit(f"residency_table: the hook in {env['LD_PRELOAD']} was not attached:\n{done.stderr[-2000:]}")
        return done.stdout

    def tool(self, *arguments):
        return json.loads(self.run([self.build / "bin" / "sluice-trace", *arguments, "--json"], {}))

    def play(self, trace, engine, budget):
        """Figures of one run, and what the engine believed (sluice only)."""
        env = {"LD_LIBRARY_PATH": str(self.build / "lib" / "simgpu")}
        rest = ["--warm-up", self.warm_up]
        if engine in ("uvm", "pump"):
            profile = self.folder / f"card-{budget}.profile"
            lines = [f"memory = {budget + sum(CARD_OVERHEAD.values())}"] + [f"{key} = {value}" for key, value in CARD_OVERHEAD.items()]
            profile.write_text("\n".join(lines) + "\n")
            env["SIMGPU_PROFILE"] = str(profile)
            command = [self.build / "test" / "peer_replay", trace, "--rules", engine, "--budget-mib", budget // MIB, *rest]
            return json.loads(self.run(command, env)), None
        # The factor comes to 100 by itself where cuBLAS' and cuDNN's calls are seen, as in these programs; traces hold no such calls.
        env |= {"LD_PRELOAD": str(self.hook / "libsluice.so"), "SLUICE_GPU_MEMORY": str(budget), "SLUICE_MEMORY_FACTOR": "100"}
        if engine != "sluice":
            env["SLUICE_PREFETCH"] = {"faults": "off", "lru": "launch"}[engine]
        command = [self.build / "bin" / "sluice-replay", trace, "--json", *rest] + (["--steps", self.steps] if self.steps else [])
        figures = json.loads(self.run(command, env))
        if engine != "sluice":
            return figures, None
        # What it believed comes from a run of its own: events around each launch, which a recording sets, take time.
        recorded = self.folder / "recorded"
        self.run(command, env | {"SLUICE_RECORD": str(recorded)})
        return figures, self.tool("explain", trace, recorded)


def moved(figures):
    s = figures["simulated"]
    return s["fault_bytes"] + s["prefetch_in_bytes"] + s["prefetch_out_bytes"] + s["driver_evicted_bytes"] + s.get("remote_bytes", 0)


def row(bench, name, trace, ratio, engines):
    limit = bench.tool("bound", trace, "--budget-gib", 1)
    budget = int(limit["peak_live_bytes"] / ratio) // (2 * MIB) * 2 * MIB
    limit = bench.tool("bound", trace, "--budget-gib", budget / GIB)
    out = {"trace": name, "ratio": ratio, "live_bytes": limit["peak_live_bytes"], "budget_bytes": budget, "bound": limit, "engines": {}}
    for engine in engines:
        begin = time.monotonic()
        figures, believed = bench.play(trace, engine, budget)
        out["engines"][engine] = {"ms": figures["median_ms"], "moved_bytes": moved(figures), **figures["simulated"]}
        if believed:
            out["believed"] = believed
        print(f"   {name}, budget {budget / GIB:.2f} GiB, {engine}: {figures['median_ms']:.1f} ms a step ({time.monotonic() - begin:.0f} s)", file=sys.stderr,
              flush=True)
    return out


def ratio_of(row, above, below):
    engines = row["engines"]
    return engines[above]["ms"] / engines[below]["ms"] if above in engines and below in engines else None


def text(value, form):
    return "" if value is None else format(value, form)


def table(rows, engines):
    lines = ["| trace | live, budget GiB | " + " | ".join(f"{e}, ms" for e in engines) + " | bound, ms | managed, ms | faults / sluice | pump / sluice | moved / bound | moved / managed | known % | too much % | fetched, unused % of MiB |",
             "|---|---|" + "---|" * (len(engines) + 9)]
    for r in rows:
        bound, believed = r["bound"], r.get("believed")
        least = bound["in_bytes"] + bound["out_bytes"]
        moving = 2 * bound["in_bytes"]
        moving_ms = max(bound["kernel_ms"], 1e3 * bound["in_bytes"] / MANAGED_OUT, 1e3 * moving / MANAGED_BOTH)
        cells = [r["trace"], f"{r['live_bytes'] / GIB:.2f}, {r['budget_bytes'] / GIB:.2f}"]
        cells += [f"{r['engines'][e]['ms']:.1f}" for e in engines] + [f"{bound['limit_ms']:.1f}", f"{moving_ms:.1f}"]
        cells += [text(ratio_of(r, "faults", "sluice"), ".2f"), text(ratio_of(r, "pump", "sluice"), ".2f")]
        cells += [f"{r['engines']['sluice']['moved_bytes'] / b:.2f}" if b and "sluice" in r["engines"] else "" for b in (least, moving)]
        cells += [f"{100 * believed['covered_bytes'] / max(1, believed['touched_bytes']):.2f}",
                  f"{100 * (1 - believed['covered_bytes'] / max(1, believed['believed_bytes'])):.1f}"] if believed else ["", ""]
        fetched = r["engines"].get("sluice", {"total_in_bytes": 0})
        cells += [f"{100 * fetched['unused_in_bytes'] / fetched['total_in_bytes']:.1f} of {fetched['total_in_bytes'] // MIB}" if fetched["total_in_bytes"] else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)")
    parser.add_argument("--traces", nargs="*", default=[], help="names in experiments/traces, or files (default: all)")
    parser.add_argument("--budgets", nargs="*", type=float, default=[1.5, 2, 3], help="live bytes divided by these")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = options.traces or sorted(p.stem for p in (ROOT / "experiments" / "traces").glob("*.sltrace"))
    traces = [(pathlib.Path(n).stem, pathlib.Path(n) if os.sep in n else ROOT / "experiments" / "traces" / f"{n}.sltrace") for n in names]
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
        print(f"\nagainst PUMP's rules: median {statistics.median(against):.2f}x, least {min(against):.2f}x")
    misuses = sum(e["misuses"] for r in rows for e in r["engines"].values())
    if misuses:
        sys.exit(f"residency_table: the simulated card reported {misuses} misuses")


if __name__ == "__main__":
    main()
