#!/usr/bin/env python3
"""How far the simulated card's predictions are from a real one: each recorded trace where it fits, and at two budgets by faults and by sluice.

    test/bench/fidelity.py [--build DIR] [--hook DIR] [--measured FILE]

FILE is fidelity_measured.json beside this program, or a results.json of `test/gpu/run --only fidelity` (same programs, same budgets, same engine);
`--take` turns the latter into the former. Predicted: the trace played through the hook on the simulated H200, whose profile holds
micro-benchmark rates alone, to the same step and with the same steps left out (test/gpu/rows.py). Exit 1 if a cell is off by more than 20 %.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "gpu"))
import rows  # noqa: E402
MEASURED = pathlib.Path(__file__).resolve().parent / "fidelity_measured.json"
FITS_MIB = 9216
LIMIT = 0.2


def read(path):
    """{"machine": ..., "ms": {trace: {variant: milliseconds}}}"""
    data = json.loads(pathlib.Path(path).read_text())
    if "benchmarks" not in data:
        return data
    medians = {}
    for row in data["benchmarks"]:
        # A row that ran out of time has the figures of those variants that ran.
        figures = {variant: [ms for ms in all_ms if ms is not None] for variant, all_ms in row.get("figures", {}).items()}
        if row["name"].startswith("fidelity ") and any(figures.values()):
            medians[row["name"].removeprefix("fidelity ")] = {variant: statistics.median(ms) for variant, ms in figures.items() if ms}
    machine = data["machine"]
    return {"machine": f"{', '.join(machine['gpus'])}, driver {machine['driver']}, {machine['date']}", "ms": medians}


def played(name):
    """How many steps the measured program takes, and how many of them its figure leaves out."""
    row = next(r for r in rows.fidelity() if r["name"] == f"fidelity {name}")
    return row["command"][row["command"].index("--steps") + 1], str(row["skip"])


def predict(build, hook, name, variant):
    trace = ROOT / "trace" / "data" / f"{name}.sltrace"
    steps, skip = played(name)
    kind, _, mib = variant.partition(" ")
    env = {**os.environ, "LD_LIBRARY_PATH": str(build / "lib" / "simgpu")}
    if kind != "unhooked":
        # The factor comes to 100 by itself where cuBLAS' and cuDNN's calls are seen, as in these programs; traces hold no such calls.
        env |= {"LD_PRELOAD": str(hook / "libsluice.so"), "SLUICE_GPU_MEMORY": str(int(mib or FITS_MIB) << 20), "SLUICE_MEMORY_FACTOR": "100"}
    if kind == "faults":
        env["SLUICE_PREFETCH"] = "off"
    done = subprocess.run([str(build / "bin" / "sluice-replay"), str(trace), "--json", "--steps", steps, "--warm-up", skip], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fidelity: {trace} ({variant}) ended with {done.returncode}:\n{done.stderr[-2000:]}")
    if kind != "unhooked" and "exit pid" not in done.stderr:
        sys.exit(f"fidelity: the hook in {hook} was not attached:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout)
    if len(figures["steps_ms"]) != int(steps):
        sys.exit(f"fidelity: {trace} has {len(figures['steps_ms'])} steps, the measured program {steps}")
    return figures["median_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)")
    parser.add_argument("--measured", default=str(MEASURED))
    parser.add_argument("--take", action="store_true", help="write FILE's medians to fidelity_measured.json, predict nothing")
    options = parser.parse_args()
    if not pathlib.Path(options.measured).exists():
        sys.exit(f"fidelity: {options.measured} is not there: run `test/gpu/run --only fidelity` on a card, and give its results.json to --measured --take")
    measured = read(options.measured)
    if options.take:
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n")
        return
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    print(f"Measured: {measured['machine']}\n\n| trace | variant | measured, ms | predicted, ms | off by |\n|---|---|---|---|---|")
    wrong = 0
    for name, variants in measured["ms"].items():
        for variant, real in variants.items():
            ours = predict(build, hook, name, variant)
            off = ours / real - 1
            wrong += abs(off) > LIMIT
            print(f"| {name} | {variant}{' MiB' if variant[-1].isdigit() else ''} | {real:.1f} | {ours:.1f} | {'**' if abs(off) > LIMIT else ''}"
                  f"{100 * off:+.0f} %{'**' if abs(off) > LIMIT else ''} |", flush=True)
    print(f"\n{wrong} cells are off by more than {100 * LIMIT:.0f} %")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
