#!/usr/bin/env python3
"""Workloads that thrash (thrash_bench), by demand paging and by sluice, on the simulated GPU.

    experiments/bench/thrash_table.py [--build DIR] [--hook DIR] [--check]

Virtual microseconds a launch; live bytes are 1.5, 3 and 6 times the budget of 512 MiB.
- The settled state: the second half of all launches; the host waits after each 64.
- The cost of settling: the first 256 launches of these, and all launches of a host that never waits.
- A neighbour's pressure: 6 GiB are live in a budget of 4 GiB on a GPU of 8 GiB. A process without the hook takes 4.8
  GiB for a while, as unmanaged memory or as managed memory that it uses without a pause, so that about 2.9 GiB
  remain. Times are before, beside and after that process.
--check: a part of the table.
Exit status 1: a cell is slower than `--prefetch off` by more than 3 % once settled, a run ends with more than its
budget resident, or the hook does not lower its memory factor beside the neighbour.
"""

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
import exit_line  # noqa: E402
import played_agent  # noqa: E402

NAMES = (
    "walk",
    "reread",
    "random",
    "random_reread",
    "corner",
    "lookup",
    "lookup_reread",
    "lookups",
    "lookups_reread",
    "pool",
    "pool_reread",
)
CHECKED = ("walk", "random_reread", "lookup", "lookup_reread")
BUDGET_MIB = 512
BESIDE = ("walk", "reread", "random", "random_reread", "lookup", "lookups")
BESIDE_CHECKED = ("walk", "random")
over_budget = []  # runs with more than their budget resident at their end
MODES = ("off", "predict")
NEIGHBOURS = {"hold": "unmanaged memory", "busy": "managed memory, in use"}
NEIGHBOUR_GIB, SHARED_LIVE_MIB, SHARED_BUDGET_MIB = 4.8, 6144, 4096


def environment(build):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_"))}
    return env | {"LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), "SIMGPU_PROFILE": "card-8g"}


def play(build, hook, name, live_mib, mode, launches, ahead=64, budget_mib=BUDGET_MIB):
    """Microseconds a launch: of the second half, of the first 256 launches, of all."""
    env = environment(build) | {
        "LD_PRELOAD": str(hook / "libsluice.so"),
        "SLUICE_GPU_MEMORY": f"{budget_mib}Mi",
        "SLUICE_PREFETCH": mode,
    }
    done = subprocess.run(
        [str(build / "test" / "thrash_bench"), name, str(live_mib), str(launches), "1", str(ahead)],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode or not exit_line.attached(done.stderr):
        sys.exit(
            f"thrash_table: {name} {live_mib} {mode} ended with {done.returncode}, or without the hook:\n"
            f"{done.stderr[-2000:]}"
        )
    resident = float(re.search(r"resident at the end: (\d+) MiB", done.stderr)[1])
    if resident > budget_mib:
        over_budget.append(f"{name} {live_mib} {mode}: {resident:.0f} MiB")
    return [float(time) for time in done.stdout.split()]


def lowered_factor(socket):
    """Set once the hook publishes a lowered memory factor to the agent at this socket, which sends it no budget."""
    lowered = threading.Event()

    def talk(peer):
        page = played_agent.welcome(peer)
        peer.settimeout(0.02)  # the hook publishes ten times a second
        while True:
            if 0 < played_agent.counter(page, played_agent.FACTOR) < 100:
                lowered.set()
            with contextlib.suppress(TimeoutError):
                if not peer.recv(256):
                    return

    played_agent.Agent(socket, talk)
    return lowered


def beside(build, hook, name, mode, neighbour, launches):
    """Microseconds a launch before, beside and after the neighbour, and whether the hook lowered its memory factor."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/err", "w+") as err:
        # Patience keeps both on the common clock on a loaded machine.
        env = environment(build) | {"SIMGPU_STATE": f"{folder}/card", "SIMGPU_PATIENCE_MS": "20000"}
        hooked = env | {
            "LD_PRELOAD": str(hook / "libsluice.so"),
            "SLUICE_GPU_MEMORY": f"{SHARED_BUDGET_MIB}Mi",
            "SLUICE_PREFETCH": mode,
            "SLUICE_MEMORY_FACTOR": "100",
            "SLUICE_SOCKET": f"{folder}/agent.sock",
        }
        lowered = lowered_factor(hooked["SLUICE_SOCKET"])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        ours = subprocess.Popen(
            [str(build / "test" / "thrash_bench"), name, str(SHARED_LIVE_MIB), str(launches), "3"],
            env=hooked,
            stderr=err,
            **pipes,
        )
        times = []
        for phase in range(3):
            if phase == 1:
                others = subprocess.Popen(
                    [str(build / "test" / "simgpu_tenant"), str(NEIGHBOUR_GIB), "1", neighbour], env=env, **pipes
                )
                if others.stdout.readline() != "ready\n":
                    sys.exit("thrash_table: the neighbour did not get its memory")
            if phase == 2:
                others.communicate()
            if phase > 0:
                ours.stdin.write("\n")
                ours.stdin.flush()
            times.append(ours.stdout.readline())
            if phase == 1 and mode != "off":
                lowered.wait(10)  # the process waits for its input, and still publishes its counters
        ours.communicate()
        err.seek(0)
        log = err.read()
        if ours.returncode or others.returncode or not exit_line.attached(log):
            sys.exit(
                f"thrash_table: {name} beside {neighbour} {mode} ended with {ours.returncode}, "
                f"the neighbour with {others.returncode}:\n{log[-2000:]}"
            )
        return [float(time.split()[0]) for time in times], lowered.is_set()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument(
        "--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)"
    )
    parser.add_argument("--launches", type=int, default=4000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    slower, unnoticed = [], []
    heads = ["faults, sluice, us", "first 256"] + ([] if options.check else ["host never waits"])
    print(
        "| workload, live / budget |"
        + "".join(f" {head} | faults / sluice |" for head in heads)
        + "\n|---|"
        + "---|---|" * len(heads)
    )
    cells = [
        (name, ratio, BUDGET_MIB)
        for name in (CHECKED if options.check else NAMES)
        for ratio in ((3, 6) if options.check else (1.5, 3, 6))
    ]
    for name, ratio, budget_mib in cells + [("lookup", 1.5, SHARED_BUDGET_MIB)]:
        # A table of 6 GiB is mapped remotely in steps, which takes 3,500 launches.
        launches = options.launches * (2 if budget_mib > BUDGET_MIB else 1)
        (off, off_first, _), (on, on_first, _) = (
            play(build, hook, name, int(ratio * budget_mib), mode, launches, 64, budget_mib) for mode in MODES
        )
        pairs = [(off, on), (off_first, on_first)]
        if not options.check:
            pairs.append(
                [play(build, hook, name, int(ratio * budget_mib), mode, launches, 0, budget_mib)[2] for mode in MODES]
            )
        label = f"{name}, {ratio}" + (" of 4 GiB" if budget_mib > BUDGET_MIB else "")
        print(f"| {label} |" + "".join(f" {a:.0f}, {b:.0f} | {a / b:.2f} |" for a, b in pairs), flush=True)
        if on > 1.03 * off:
            slower.append(f"{name} at {ratio}: {on / off:.2f}")
    print(
        "\n| beside a neighbour with 4.8 GiB of | work | faults: before, beside, after, us | sluice, us "
        "| faults / sluice, beside it |\n|---|---|---|---|---|"
    )
    launches = 750 if options.check else options.launches // 2
    for neighbour, memory in NEIGHBOURS.items():
        for name in BESIDE_CHECKED if options.check else BESIDE:
            (off, _), (on, lowered) = (
                beside(build, hook, name, mode, neighbour, launches) for mode in ("off", "predict")
            )
            print(
                f"| {memory} | {name} | {', '.join(f'{t:.0f}' for t in off)} | {', '.join(f'{t:.0f}' for t in on)} "
                f"| {off[1] / on[1]:.2f} |",
                flush=True,
            )
            if on[1] > 1.03 * off[1]:
                slower.append(f"{name} beside {memory}: {on[1] / off[1]:.2f}")
            if name in BESIDE_CHECKED and not lowered:
                unnoticed.append(f"{name} beside {memory}")
    if slower:
        print("\nslower than demand paging by more than 3 %: " + ", ".join(slower))
    if unnoticed:
        print("\nmemory factor not lowered beside a neighbour: " + ", ".join(unnoticed))
    if over_budget:
        print(f"\nmore resident than the budget of {BUDGET_MIB} MiB: " + ", ".join(over_budget))
    return 1 if slower or unnoticed or over_budget else 0


sys.exit(main())
