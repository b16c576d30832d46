#!/usr/bin/env python3
"""CUDA graphs larger than their budget (graph_bench, read_mostly_bench) on the simulated GPU.

    experiments/bench/graph_table.py [--build DIR] [--hook DIR] [--check]

Virtual milliseconds a replay, the first half left out: by demand paging, with SLUICE_READ_MOSTLY=0, and with defaults.
Live bytes are 1.5 and 3 times the budget of 512 MiB. --check: only 1.5 times. No graph may be slower than demand paging
by more than 3 %. It must be twice as fast where the memory beyond the budget can be streamed or duplicated.
"""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402

# bench, name, the work of its nodes, replays, whether it must be twice as fast
ROWS = [
    ("graph_bench", "once", "kernels read memory that kernels wrote, once", 60, True),
    ("graph_bench", "foreach", "PyTorch's struct of tensors; each node uses one of the eight that it names", 60, True),
    ("graph_bench", "reread", "kernels read memory that kernels wrote, eight times", 60, False),
    ("read_mostly_bench", "graph", "calls read weights that copies loaded, 32 times", 40, True),
    ("read_mostly_bench", "graph-once", "the same, once", 40, True),
    ("read_mostly_bench", "graph-ahead", "32 times, and the host never waits", 60, True),
    ("read_mostly_bench", "graph-made", "32 times, kernels wrote the weights", 40, False),
    ("read_mostly_bench", "graph-mixed", "32 times, kernels wrote every second weight", 40, False),
    ("read_mostly_bench", "graph-loss", "32 times, and after each replay a kernel reduces its output", 40, True),
    ("read_mostly_bench", "graph-made-loss", "the same, kernels wrote the weights", 40, False),
]
BUDGET_MIB = 512


def play(build, hook, bench, name, live_mib, replays, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_"))}
    env |= {
        "LD_LIBRARY_PATH": f"{build}/lib/simgpu:{build}/test/libraries/libraries",
        "SIMGPU_PROFILE": "card-8g" if bench == "graph_bench" else "h200",
        "LD_PRELOAD": str(hook / "libsluice.so"),
        "SLUICE_GPU_MEMORY": f"{BUDGET_MIB}Mi",
        **more,
    }
    done = subprocess.run(
        [str(build / "test" / bench), name, str(live_mib), str(replays)], env=env, capture_output=True, text=True
    )
    if done.returncode or not exit_line.attached(done.stderr):
        sys.exit(
            f"graph_table: {bench} {name} {live_mib} {more} ended with {done.returncode}, or without the hook:\n"
            f"{done.stderr[-2000:]}"
        )
    return float(done.stdout) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument(
        "--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)"
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    missed = []
    ratios = (1.5,) if options.check else (1.5, 3)
    print(
        "| a graph whose nodes | "
        + " | ".join(f"{r:g} times the budget: ms | faster" for r in ratios)
        + " |\n|---|"
        + "---|---|" * len(ratios)
    )
    for bench, name, work, replays, twice in ROWS:
        cells = ""
        for ratio in ratios:
            off, single, on = (
                play(build, hook, bench, name, int(ratio * BUDGET_MIB), replays, **env)
                for env in ({"SLUICE_PREFETCH": "off"}, {"SLUICE_READ_MOSTLY": "0"}, {})
            )
            cells += f" {off:.1f} / {single:.1f} / **{on:.1f}** | {off / on:.2f} |"
            missed += [f"{bench} {name}: {off / time:.2f}" for time in (single, on) if time > 1.03 * off]
            missed += [f"{bench} {name}: {off / on:.2f}, not twice as fast"] if twice and off < 2 * on else []
        print(f"| {work} |{cells}", flush=True)
    if missed:
        print("\nmissed: " + ", ".join(missed))
    return 1 if missed and options.check else 0


sys.exit(main())
