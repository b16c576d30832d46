#!/usr/bin/env python3
"""Work that hurts (thrash_bench), by demand faults and by sluice, on the simulated card: thrash_table.py [--build DIR] [--check]

Virtual microseconds a launch; live bytes are 1.5, 3 and 6 times the budget of 512 MiB. How it settles (the second half of all launches, the host waits
after each 64), and what settling costs: the first 256 of these, and all of a host that never waits. Then a neighbour's pressure: 6 GiB live in a budget of
4 GiB on a card of 8 GiB, of which a process without the hook takes 4.8 for a while (plain memory that it holds, or managed memory that it
goes through without a pause), so that about 2.9 are left; before it comes, while it is there, after it is gone. --check: a part of it, no cell may be slower
than `--prefetch off` by more than 3 %, and the neighbour is told of."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = ("walk", "reread", "random", "random_reread", "corner", "lookup", "lookup_reread", "lookups", "lookups_reread", "pool", "pool_reread")
CHECKED = ("walk", "random_reread", "lookup", "lookup_reread")
BUDGET_MIB = 512
BESIDE = ("walk", "reread", "random", "random_reread", "lookup", "lookups")
BESIDE_CHECKED = ("walk", "random")
OVER = []  # runs that held more than their budget at their end
MODES = ("off", "predict")
NEIGHBOURS = {"hold": "plain memory", "busy": "managed memory, in use"}
NEIGHBOUR_GIB, SHARED_LIVE_MIB, SHARED_BUDGET_MIB = 4.8, 6144, 4096
SENTENCE = "the driver takes memory of this process away"


def environment(build):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_"))}
    return env | {"LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), "SIMGPU_PROFILE": "card-8g"}


def play(build, hook, name, live_mib, mode, launches, ahead=64, budget_mib=BUDGET_MIB):
    """Microseconds a launch: of the second half, of the first 256, of all."""
    env = environment(build) | {"LD_PRELOAD": str(hook / "libsluice.so"), "SLUICE_GPU_MEMORY": f"{budget_mib}Mi", "SLUICE_PREFETCH": mode}
    done = subprocess.run([str(build / "test" / "thrash_bench"), name, str(live_mib), str(launches), "1", str(ahead)], env=env, capture_output=True, text=True)
    if done.returncode or "exit pid" not in done.stderr:
        sys.exit(f"thrash_table: {name} {live_mib} {mode} ended with {done.returncode}, or without the hook:\n{done.stderr[-2000:]}")
    held = float(re.search(r"on the card: (\d+) MiB", done.stderr)[1])
    if held > budget_mib:
        OVER.append(f"{name} {live_mib} {mode}: {held:.0f} MiB")
    return [float(time) for time in done.stdout.split()]


def beside(build, hook, name, mode, neighbour, launches):
    """Microseconds a launch before the neighbour comes, while it is there, and after; and what the hook said."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/err", "w+") as err:
        # A loaded machine must not let either fall out of the common clock.
        env = environment(build) | {"SIMGPU_STATE": f"{folder}/card", "SIMGPU_PATIENCE_MS": "20000"}
        hooked = env | {"LD_PRELOAD": str(hook / "libsluice.so"), "SLUICE_GPU_MEMORY": f"{SHARED_BUDGET_MIB}Mi", "SLUICE_PREFETCH": mode,
                        "SLUICE_MEMORY_FACTOR": "100"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        ours = subprocess.Popen([str(build / "test" / "thrash_bench"), name, str(SHARED_LIVE_MIB), str(launches), "3"], env=hooked, stderr=err, **pipes)
        times = []
        for phase in range(3):
            if phase == 1:
                others = subprocess.Popen([str(build / "test" / "simgpu_tenant"), str(NEIGHBOUR_GIB), "1", neighbour], env=env, **pipes)
                if others.stdout.readline() != "ready\n":
                    sys.exit("thrash_table: the neighbour did not get its memory")
            if phase == 2:
                others.communicate()
            if phase > 0:
                ours.stdin.write("\n")
                ours.stdin.flush()
            times.append(ours.stdout.readline())
        ours.communicate()
        err.seek(0)
        said = err.read()
        if ours.returncode or others.returncode or "exit pid" not in said:
            sys.exit(f"thrash_table: {name} beside {neighbour} {mode} ended with {ours.returncode}, the neighbour with {others.returncode}:\n{said[-2000:]}")
        return [float(time.split()[0]) for time in times], said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)")
    parser.add_argument("--launches", type=int, default=4000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    slower = []
    heads = ["faults, sluice, us", "first 256"] + ([] if options.check else ["host never waits"])
    print("| workload, live / budget |" + "".join(f" {head} | faults / sluice |" for head in heads) + "\n|---|" + "---|---|" * len(heads))
    cells = [(name, ratio, BUDGET_MIB) for name in (CHECKED if options.check else NAMES) for ratio in ((3, 6) if options.check else (1.5, 3, 6))]
    for name, ratio, budget_mib in cells + [("lookup", 1.5, SHARED_BUDGET_MIB)]:
        # A table of 6 GiB is mapped in host memory in steps, which has settled after 3,500 launches.
        launches = options.launches * (2 if budget_mib > BUDGET_MIB else 1)
        (off, off_first, _), (on, on_first, _) = (play(build, hook, name, int(ratio * budget_mib), mode, launches, 64, budget_mib) for mode in MODES)
        pairs = [(off, on), (off_first, on_first)]
        if not options.check:
            pairs.append([play(build, hook, name, int(ratio * budget_mib), mode, launches, 0, budget_mib)[2] for mode in MODES])
        what = f"{name}, {ratio}" + (" of 4 GiB" if budget_mib > BUDGET_MIB else "")
        print(f"| {what} |" + "".join(f" {a:.0f}, {b:.0f} | {a / b:.2f} |" for a, b in pairs), flush=True)
        if on > 1.03 * off:
            slower.append(f"{name} at {ratio}: {on / off:.2f}")
    print("\n| beside a neighbour with 4.8 GiB of | work | faults: before, beside, after, us | sluice, us | faults / sluice, beside it |\n|---|---|---|---|---|")
    for neighbour, what in NEIGHBOURS.items():
        for name in BESIDE_CHECKED if options.check else BESIDE:
            (off, _), (on, said) = (beside(build, hook, name, mode, neighbour, 750 if options.check else options.launches // 2) for mode in ("off", "predict"))
            print(f"| {what} | {name} | {', '.join(f'{t:.0f}' for t in off)} | {', '.join(f'{t:.0f}' for t in on)} | {off[1] / on[1]:.2f} |", flush=True)
            if on[1] > 1.03 * off[1]:
                slower.append(f"{name} beside {what}: {on[1] / off[1]:.2f}")
            if name in BESIDE_CHECKED and SENTENCE not in said:
                slower.append(f"{name} beside {what}: nothing was said of it:\n{said[-2000:]}")
    if slower:
        print("\nslower than faults by more than 3 %: " + ", ".join(slower))
    if OVER:
        print(f"\nmore on the card than the budget of {BUDGET_MIB} MiB: " + ", ".join(OVER))
    return 1 if (slower or OVER) and options.check else 0


sys.exit(main())
