#!/usr/bin/env python3
"""Work that hurts (thrash_bench), by demand faults and by sluice, on the simulated card: thrash_table.py [--build DIR] [--check]

Virtual microseconds a launch; live bytes are 1.5, 3 and 6 times the budget of 512 MiB. --check: a part of it, and no cell may be
slower than `--prefetch off` by more than 3 %."""
import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = ("walk", "reread", "random", "random_reread", "corner", "lookup", "lookup_reread", "lookups", "lookups_reread")
CHECKED = ("walk", "random_reread", "lookup", "lookup_reread")
BUDGET_MIB = 512


def play(build, hook, name, live_mib, mode, launches):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_"))}
    env |= {"LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), "LD_PRELOAD": str(hook / "libsluice.so"), "SIMGPU_PROFILE": "card-8g",
            "SLUICE_GPU_MEMORY": f"{BUDGET_MIB}Mi", "SLUICE_PREFETCH": mode}
    done = subprocess.run([str(build / "test" / "thrash_bench"), name, str(live_mib), str(launches)], env=env, capture_output=True, text=True)
    if done.returncode or "exit pid" not in done.stderr:
        sys.exit(f"thrash_table: {name} {live_mib} {mode} ended with {done.returncode}, or without the hook:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--hook", default="", help="folder of libsluice.so and libsluice_engine.so (default: <build>/lib)")
    parser.add_argument("--launches", type=int, default=4000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    hook = pathlib.Path(options.hook).resolve() if options.hook else build / "lib"
    launches = 1500 if options.check else options.launches
    slower = []
    print("| workload, live / budget | faults, us | sluice, us | faults / sluice |\n|---|---|---|---|")
    for name in CHECKED if options.check else NAMES:
        for ratio in (3, 6) if options.check else (1.5, 3, 6):
            off, on = (play(build, hook, name, int(ratio * BUDGET_MIB), mode, launches) for mode in ("off", "predict"))
            print(f"| {name}, {ratio} | {off:.0f} | {on:.0f} | {off / on:.2f} |", flush=True)
            if on > 1.03 * off:
                slower.append(f"{name} at {ratio}: {on / off:.2f}")
    if slower:
        print("\nslower than faults by more than 3 %: " + ", ".join(slower))
    return 1 if slower and options.check else 0


sys.exit(main())
