#!/usr/bin/env python3
"""The simulated GPU's predictions compared with a real one: each recorded trace where it fits, and at two budgets by
demand paging and by sluice.

    experiments/bench/fidelity.py [--build DIR] [--hook DIR] [--measured FILE] [--only PART...]

FILE is fidelity_measured.json beside this program, or a results.json of `test/gpu/run --only fidelity` (same programs,
same budgets, same engine); `--take` writes the latter's figures into the former. A prediction plays the trace through
the hook on the simulated H200, whose profile holds only micro-benchmark rates, to the same step and with the same steps
left out (test/gpu/rows.py). There are three predictions:
- with the host's pauses as recorded
- with pauses as long as the measured process's host makes them, by a micro-benchmark in that process
  (test/gpu/workloads/host_pace.py)
- with that machine's own rates for managed memory as well (rates.py, in the same call)
PART: a part of a cell's name, such as "decode unhooked". Exit 1 if a cell is off by more than 20 % in the last
prediction that was possible. Machines differ from one another by more than that, so a profile describes one machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "gpu"))
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402
import rows  # noqa: E402

MEASURED = pathlib.Path(__file__).resolve().parent / "fidelity_measured.json"
FITS_MIB = 9216
LIMIT = 0.2
# host_pace.py's operations in a trace: from the decoder's second norm to the next layer's first. The three traces were
# recorded in one call on one machine.
PACE_TRACE, PACE_KERNELS = "decode", ("layer_norm", "ActivationSilu")


def read(path):
    """Calls of `test/gpu/run`, each on one machine.

    [{"machine": ..., "rates": {key of the profile: value}, "cells": {cell: {"ms", "host_us"}}}]
    """
    data = json.loads(pathlib.Path(path).read_text())
    if "benchmarks" not in data:
        return data["calls"]
    cells = {}
    for row in data["benchmarks"]:
        if not row["name"].startswith("fidelity "):
            continue
        # A row that ran out of time has the figures of the variants that ran.
        for variant, figures in row.get("figures", {}).items():
            if figures := [ms for ms in figures if ms is not None]:
                cell = cells[f"{row['name'].removeprefix('fidelity ')} {variant}"] = {"ms": statistics.median(figures)}
                if variant in row.get("host_us", {}):
                    cell["host_us"] = row["host_us"][variant]
    machine = data["machine"]
    return [
        {
            "machine": f"{', '.join(machine['gpus'])}, driver {machine['driver']}, {machine['date']}",
            "rates": data.get("rates") or {},
            "cells": cells,
        }
    ]


def take(fresh):
    """Newly measured cells replace those of older calls."""
    kept = read(MEASURED) if MEASURED.exists() else []
    for call in kept:
        call["cells"] = {
            cell: figures for cell, figures in call["cells"].items() if not any(cell in new["cells"] for new in fresh)
        }
    MEASURED.write_text(json.dumps({"calls": [call for call in kept + fresh if call["cells"]]}, indent=1) + "\n")


def played(name):
    """The number of steps of the measured program, and of steps that its figure leaves out."""
    row = next(r for r in rows.fidelity() if r["name"] == f"fidelity {name}")
    return row["command"][row["command"].index("--steps") + 1], str(row["skip"])


def predict(build, hook, name, variant, pace=1.0, profile="h200"):
    trace = ROOT / "experiments" / "traces" / f"{name}.sltrace"
    steps, skip = played(name)
    kind, _, mib = variant.partition(" ")
    env = {**os.environ, "LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), "SIMGPU_PROFILE": str(profile)}
    if kind != "unhooked":
        # The engine sets the factor to 100 where it sees cuBLAS' and cuDNN's calls, as in the recorded programs; traces
        # hold no such calls.
        env |= {
            "LD_PRELOAD": str(hook / "libsluice.so"),
            "SLUICE_GPU_MEMORY": str(int(mib or FITS_MIB) << 20),
            "SLUICE_MEMORY_FACTOR": "100",
        }
    if kind == "faults":
        env["SLUICE_PREFETCH"] = "off"
    done = subprocess.run(
        [
            str(build / "bin" / "sluice-replay"),
            str(trace),
            "--json",
            "--steps",
            steps,
            "--warm-up",
            skip,
            "--host-pace",
            f"{pace:.4f}",
        ],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"fidelity: {trace} ({variant}) ended with {done.returncode}:\n{done.stderr[-2000:]}")
    if kind != "unhooked" and not exit_line.attached(done.stderr):
        sys.exit(f"fidelity: the hook in {hook} was not attached:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout)
    if len(figures["steps_ms"]) != int(steps):
        sys.exit(f"fidelity: {trace} has {len(figures['steps_ms'])} steps, the measured program {steps}")
    return figures["median_ms"]


def recorded_us(build):
    """The figure that host_pace.py would have printed on the machine of the traces."""
    done = subprocess.run(
        [
            str(build / "bin" / "sluice-trace"),
            "interval",
            str(ROOT / "experiments" / "traces" / f"{PACE_TRACE}.sltrace"),
            *PACE_KERNELS,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["median_us"]


def off(ours, real):
    text = f"{100 * (ours / real - 1):+.0f} %"
    return f"**{text}**" if abs(ours / real - 1) > LIMIT else text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument(
        "--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)"
    )
    parser.add_argument("--measured", default=str(MEASURED))
    parser.add_argument("--only", nargs="*", default=[""], help="cells whose names contain one of these")
    parser.add_argument(
        "--take", action="store_true", help="write FILE's figures to fidelity_measured.json, predict nothing"
    )
    options = parser.parse_args()
    if not pathlib.Path(options.measured).exists():
        sys.exit(
            f"fidelity: {options.measured} does not exist: run `test/gpu/run --only fidelity` on a machine with a GPU, "
            "and pass its results.json to --measured --take"
        )
    calls = read(options.measured)
    if options.take:
        take(calls)
        return
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    recorded = recorded_us(build)
    print(f"The traces' host took {recorded:.0f} us for host_pace.py's layer. Measured:\n")
    for number, call in enumerate(calls, 1):
        rates = ", ".join(f"{key} {value}" for key, value in call["rates"].items())
        print(f"{number}. {call['machine']}{': ' + rates if rates else ''}")
    print(
        "\n| trace | variant | call | measured, ms | predicted, ms | off by | host, us | at that pace, ms | off by "
        "| and that machine's rates, ms | off by |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    wrong = wrong_built_in = 0
    with tempfile.TemporaryDirectory() as folder:
        for bench in rows.fidelity():
            name = bench["name"].removeprefix("fidelity ")
            for variant in bench["variants"]:
                cell = f"{name} {variant}"
                number, call = next(((n, c) for n, c in enumerate(calls, 1) if cell in c["cells"]), (0, None))
                if call is None or not any(part in cell for part in options.only):
                    continue
                real, host = call["cells"][cell]["ms"], call["cells"][cell].get("host_us")
                built_in = judged = predict(build, hook, name, variant)
                measured = ["not measured", "", "", "", ""]
                if host:
                    judged = predict(build, hook, name, variant, host / recorded)
                    measured[:3] = [f"{host:.0f}", f"{judged:.1f}", off(judged, real)]
                if host and call["rates"]:
                    profile = pathlib.Path(folder) / f"{number}.profile"
                    profile.write_text("".join(f"{key} = {value}\n" for key, value in call["rates"].items()))
                    judged = predict(build, hook, name, variant, host / recorded, profile)
                    measured[3:] = [f"{judged:.1f}", off(judged, real)]
                wrong += abs(judged / real - 1) > LIMIT
                wrong_built_in += abs(built_in / real - 1) > LIMIT
                columns = [
                    name,
                    variant + (" MiB" if variant[-1].isdigit() else ""),
                    str(number),
                    f"{real:.1f}",
                    f"{built_in:.1f}",
                    off(built_in, real),
                    *measured,
                ]
                print(f"| {' | '.join(columns)} |", flush=True)
    print(
        f"\n{wrong} cells are off by more than {100 * LIMIT:.0f} %, by the built-in profile and the recorded host's "
        f"pauses {wrong_built_in}"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
