#!/usr/bin/env python3
"""Inference servers with paged caches (paged_bench) on the simulated GPU: decode steps hooked and unhooked.

    experiments/bench/paged_table.py [--build DIR] [--hook DIR] [--check] [ROW...]
    experiments/bench/paged_table.py --host-time [--build DIR] [--hook DIR] [--check]

Weights of 1.6 GiB, a cache of 4 GiB (slots: 1.9 and 6.3 GiB), a budget of 4 GiB (slots: all of it may be filled, as
where cuBLAS tells what launches use), other budgets in the rows' names. Virtual milliseconds a step: unhooked; hooked,
the mean of the first 50 steps and the median of those behind the first two seconds, each with its ratio to unhooked.
The last column is the share of settled steps that took over five times the median. --check: each row
computes the result of the unhooked run, and keeps its goal: 1.05 where the touched pages fit; strewn pages launch by
launch take as long as in a graph, whose goal is the link's (test/gpu/run).

--host-time: processor seconds of a server whose launches name 6.3 GiB of caches and touch a tenth, in 6 GiB and where
all of it fits, three runs of each in turn; the ratio of the shortest. The simulated GPU's own time is in both.
"""

import argparse
import os
import pathlib
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402

# workload and ":" with another budget in MiB, the pages in use, most times as long as unhooked once settled (0: no
# goal), sizes other than paged_bench's own
SLOTS = "1982 6496 8 32 860"
ROWS = [
    ("first-layers-graph", "the first twelfth; a graph", 1.05, ""),
    ("first-layers-eager", "the same, launch by launch", 1.05, ""),
    ("first-block-graph", "one allocation for all layers; a graph", 1.05, ""),
    ("first-block-eager", "the same, launch by launch", 1.05, ""),
    ("first-block-eager:5120", "the same in 5 GiB: the block alone fits", 1.05, ""),
    ("churn-layers-eager", "sequences that begin and end", 1.05, ""),
    ("strewn-layers-graph", "half of the pages, strewn; a graph", 0, ""),
    ("strewn-layers-eager", "the same, launch by launch", 3.6, ""),
    ("slots-block-eager:3072", "16 slots of a block of 4 GiB in 3 GiB, launch by launch", 1.05, ""),
    ("slots-block-eager", "16 slots of a block of 6.3 GiB, launch by launch", 1.05, SLOTS),
    ("slots-block-graph", "the same, a graph made anew each 20 steps", 0, SLOTS),
    ("slots-block-graph:6144", "one slot at a time, for 128 steps", 1.05, SLOTS + " 1 128"),
]
BUDGET_MIB = 4096
HOST_SIZES, HOST_BUDGETS_MIB, HOST_GOAL = "1982 6496 20 32 860 16 20", (6176, 20480), 4


def play(build, hook, name, sizes, budget=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_"))}
    env["LD_LIBRARY_PATH"] = f"{build}/lib/simgpu"
    if hook:
        budget = budget or int(name.partition(":")[2] or BUDGET_MIB)
        env |= {"LD_PRELOAD": str(hook / "libsluice.so"), "SLUICE_GPU_MEMORY": f"{budget}Mi"}
        env |= {"SLUICE_MEMORY_FACTOR": "100"} if sizes else {}
    done = subprocess.run(
        [str(build / "test" / "paged_bench"), name.partition(":")[0], *sizes.split()],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode or (hook and not exit_line.attached(done.stderr)):
        sys.exit(f"paged_table: {name} ended with {done.returncode}, or without the hook:\n{done.stderr[-2000:]}")
    first, median, _mean, slow, digest = done.stdout.split()
    return float(first) / 1000, float(median) / 1000, float(slow), digest


def host_seconds(build, hook, budget):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    play(build, hook, "slots-block-eager", HOST_SIZES, budget)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def host_time(build, hook):
    """Whether the goal is missed."""
    runs = [[host_seconds(build, hook, budget) for budget in HOST_BUDGETS_MIB] for _ in range(3)]
    over, fits = (min(column) for column in zip(*runs, strict=True))
    print(
        "| the host's time, 16 slots of a block of 6.3 GiB | s | by that where all fits |\n|---|---|---|\n"
        f"| all fits | {fits:.2f} | 1 |\n| in 6 GiB | {over:.2f} | **{over / fits:.1f}** (goal {HOST_GOAL}) |"
    )
    return over > HOST_GOAL * fits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument(
        "--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)"
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--host-time", action="store_true")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: {' '.join(row[0] for row in ROWS)}")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    if options.host_time and options.rows:
        parser.error("--host-time takes no ROW")
    if options.host_time:
        return 1 if host_time(build, hook) and options.check else 0
    missed = []
    print("| pages in use | unhooked | first 50 steps | settled | slow steps |\n|---|---|---|---|---|")
    if unknown := set(options.rows) - {row[0] for row in ROWS}:
        parser.error(f"no row {' '.join(sorted(unknown))}; accepted: {' '.join(row[0] for row in ROWS)}")
    for name, work, goal, sizes in ROWS:
        if options.rows and name not in options.rows:
            continue
        _, plain, _, expected = play(build, None, name, sizes)
        first, settled, slow, digest = play(build, hook, name, sizes)
        print(
            f"| {work} | {plain:.2f} | {first:.2f} ({first / plain:.2f}) | {settled:.2f} (**{settled / plain:.2f}**) "
            f"| {slow * 100:.1f} % |",
            flush=True,
        )
        missed += [f"{name}: other values than unhooked"] if digest != expected else []
        if goal and settled > goal * plain:
            missed.append(f"{name}: {settled / plain:.2f} times as long as unhooked")
    if missed:
        print("\nmissed: " + ", ".join(missed))
    return 1 if missed and options.check else 0


sys.exit(main())
