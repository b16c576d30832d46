#!/usr/bin/env python3
"""Random legal CUDA programs, unhooked and hooked, must do the same.

differential_test.py BUILD [--first N] [--count N] [--gpus N] [--ops N] [--jobs N] [--until SECONDS] [--keep-going]
                     [--no-shrink]

Each program runs three times: unhooked, hooked in a budget that holds everything, and hooked in a budget that does not.
Compared are the contents of all memory at each synchronisation, every result, and the end of the process. The simulated
GPU reports misuse, deadlocks and more resident memory than the budget. A program that differs is made smaller, and
printed as C++ with its differences.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import re
import subprocess
import sys
import time

MIB = 1 << 20
# Programs hold at most 256 MiB, in blocks of up to 40 MiB. The smaller budget makes most of them evict: every other
# batch through the driver's calls, and the rest through the engine's eviction threads.
MODES = {"unhooked": None, "fits": 2048 * MIB, "evicts": 32 * MIB, "evicts by threads": 32 * MIB}
BATCH = 50
# The programs of three batches in four stay on one CPU each: their threads take turns, and a wake-up on another CPU
# costs a third of a program's time on a VM. The threads of the fourth run at the same time.
CPUS = sorted(os.sched_getaffinity(0))
RUNS = itertools.count()
LINE = re.compile(r"^(\d+) (ok|step-\d+|died-\d+|exit-\d+|hangs)\b")


class Runner:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).resolve()
        self.program = str(self.build / "test" / "differential_programs")
        # With a sanitizer the engine is part of the program (cmake/SluiceEngineInProgram.cmake).
        self.is_sanitized = "SLUICE_SANITIZE:STRING=\n" not in (self.build / "CMakeCache.txt").read_text()

    def environment(self, mode):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
        env["SIMGPU_PROFILE"] = "card-8g" if self.options.gpus == 1 else "two-gpu"
        env["LD_LIBRARY_PATH"] = str(self.build / "lib" / "simgpu")
        # Programs make calls that break a capture. Where the hook alone does, their codes differ.
        env["SIMGPU_CAPTURE"] = "error"
        if "ASAN_OPTIONS" in env:  # a random program ends with its objects, and a search for leaks takes a second
            env["ASAN_OPTIONS"] += ":detect_leaks=0"
        if self.is_sanitized:
            env["SLUICE_DISABLE"] = "1"
        # Longer than a program takes on a busy machine.
        env["SIMGPU_DEADLOCK_MS"] = "50000" if self.is_sanitized else "10000"
        if MODES[mode] is not None:
            env["SLUICE_GPU_MEMORY"] = str(MODES[mode])
            if mode == "evicts by threads":
                env["SIMGPU_REQUESTS"] = "threads"
            if self.is_sanitized:
                del env["SLUICE_DISABLE"]
            else:
                env["LD_PRELOAD"] = str(self.build / "lib" / "libsluice.so")
        return env

    def arguments(self):
        return [
            "--ops",
            str(self.options.ops),
            "--gpus",
            str(self.options.gpus),
            "--discard",
            "--green",
            "--textures",
            "--forms",
            str(self.options.forms),
            *(["--waits"] if self.options.waits else []),
            *(["--appends"] if self.options.peers else []),
            # With a sanitizer the engine reads its settings before the second process can have its own.
            *(["--peers"] if self.options.peers and not self.is_sanitized else []),
            *(["--execs"] if self.options.execs else []),
            *(["--copies"] if self.options.copies else []),
            *(["--seconds", "150"] if self.is_sanitized else []),
            *self.options.features,
        ]

    def run(self, mode, first, last, *more):
        """{seed: its record} of the programs first to last, and their stderr."""
        batch = (first - self.options.first) // BATCH
        # This thread's, inherited. Both ways of eviction are run in both ways.
        os.sched_setaffinity(0, {CPUS[next(RUNS) % len(CPUS)]} if batch // 2 % 4 else CPUS)
        command = [self.program, "run", str(first), str(last), *self.arguments(), *more]
        done = subprocess.run(command, env=self.environment(mode), capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
        if MODES[mode] is not None and "without limits" in done.stderr:
            raise SystemExit(f"{' '.join(command)}: not hooked\n{done.stderr[-2000:]}")
        records, seed = {}, None
        for line in done.stdout.splitlines():
            if found := LINE.match(line):
                seed = int(found[1])
                records[seed] = [line]
            elif seed is not None:
                records[seed].append(line)
        return records, done.stderr

    def differs(self, seed, mode, dropped):
        """The first difference of one program with the operations `dropped` left out; None where there is none."""
        more = ["--text"] if self.is_sanitized else ["--text", "--seconds", "20"]
        if dropped:
            more += ["--drop", ",".join(map(str, sorted(dropped)))]
        expected, _ = self.run("unhooked", seed, seed, *more)
        if not expected[seed][0].startswith(f"{seed} ok"):
            return None
        actual, err = self.run(mode, seed, seed, *more)
        if expected[seed] == actual[seed]:
            return None
        if self.is_sanitized and "SUMMARY: " in err:
            misuse = err[-6000:]
        else:
            misuse = "\n".join(line for line in err.splitlines() if "misuse" in line or "sluice" in line)[-1500:]
        for want, got in zip(expected[seed], actual[seed]):
            failed = LINE.match(got) and not got.startswith(f"{seed} ok")
            if failed or (want != got and not LINE.match(want)):
                return f"unhooked: {want}\nhooked:   {got}\n{misuse}"
        return f"unhooked: {expected[seed][0]}\nhooked:   {actual[seed][0]}\n{misuse}"

    def shrink(self, seed, mode, seconds=60):
        """The operations that can be left out with a difference remaining (Zeller and Hildebrandt, TSE 2002)."""
        count = int(
            subprocess.run(
                [self.program, "count", str(seed), *self.arguments()],
                capture_output=True,
                text=True,
                env=self.environment("unhooked"),
                check=True,
            ).stdout
        )
        kept, dropped, size = list(range(count)), set(), max(1, count // 2)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            progress = False
            for at in range(0, len(kept), size):
                part = set(kept[at : at + size])
                if part and self.differs(seed, mode, dropped | part):
                    dropped |= part
                    kept = [op for op in kept if op not in dropped]
                    progress = True
                    break
                if time.monotonic() > end:
                    break
            if not progress:
                if size == 1:
                    break
                size = max(1, size // 2)
        return dropped

    def report(self, seed, mode, lines):
        if self.differs(seed, mode, set()) is None:
            return f"seed {seed}: differs ({mode}), but not alone: {' / '.join(lines)}"
        dropped = self.shrink(seed, mode)
        drop = ["--drop", ",".join(map(str, sorted(dropped)))] if dropped else []
        source = subprocess.run(
            [self.program, "print", str(seed), *self.arguments(), *drop],
            capture_output=True,
            text=True,
            env=self.environment("unhooked"),
            check=True,
        ).stdout
        return (
            f"seed {seed} differs ({mode}): {' '.join([*self.arguments(), *drop])}\n"
            f"{self.differs(seed, mode, dropped)}\n{source}"
        )


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=2, choices=(1, 2))
    parser.add_argument("--ops", type=int, default=60)
    parser.add_argument("--forms", type=int, default=7, choices=range(1, 8), help="programs of older seeds have fewer")
    parser.add_argument("--waits", type=int, default=1, choices=(0, 1), help="0: programs of older seeds")
    parser.add_argument("--peers", type=int, default=1, choices=(0, 1), help="0: programs of older seeds")
    parser.add_argument("--execs", type=int, default=1, choices=(0, 1), help="0: programs of older seeds")
    parser.add_argument("--copies", type=int, default=1, choices=(0, 1), help="0: programs of older seeds")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--until", type=int, default=0, help="stop after this many seconds")
    parser.add_argument(
        "--keep-going", action="store_true", help="report all programs that differ, not the first three"
    )
    parser.add_argument("--no-shrink", action="store_true", help="name the programs that differ, and print no source")
    parser.add_argument("--features", nargs="*", default=[], help="more options of differential_programs")
    return parser.parse_args(words)


def main():
    options = parse(sys.argv[1:])
    runner = Runner(options)
    begin = time.monotonic()
    ran, failed, illegal, evicted = 0, [], [], 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs * 3) as pool:
        pending = {}

        def submit(first):
            last = min(first + BATCH, options.first + options.count) - 1
            evicts = "evicts by threads" if (first - options.first) // BATCH % 2 else "evicts"
            pending[first] = {mode: pool.submit(runner.run, mode, first, last) for mode in ("unhooked", "fits", evicts)}

        starts = list(range(options.first, options.first + options.count, BATCH))
        for first in starts[: options.jobs]:
            submit(first)
        for i, first in enumerate(starts):
            if first not in pending:
                break
            results = {mode: future.result() for mode, future in pending.pop(first).items()}
            late = options.until and time.monotonic() - begin > options.until
            if i + options.jobs < len(starts) and not late and (options.keep_going or len(failed) < 3):
                submit(starts[i + options.jobs])
            expected = results["unhooked"][0]
            ran += len(expected)
            for mode in results:
                if mode.startswith("evicts"):
                    evicted += sum(int(n) for n in re.findall(r"evicted_bytes=(\d+)", results[mode][1]))
            for seed, record in expected.items():
                if not record[0].startswith(f"{seed} ok"):
                    # Once more alone: a busy machine may stop a program at its time limit.
                    record = expected[seed] = runner.run("unhooked", seed, seed)[0][seed]
                if not record[0].startswith(f"{seed} ok"):
                    illegal.append((seed, record[0]))
                    continue
                for mode in results:
                    got = results[mode][0].get(seed, ["does not run"])
                    if got != record:
                        # Of the simulated driver: whichever program of this run it stopped.
                        misuse = re.findall(r"^simgpu: misuse: .*", results[mode][1], re.MULTILINE)
                        failed.append((seed, mode, [record[0], got[0], *misuse[:3]]))
    for seed, mode, lines in failed if options.keep_going else failed[:3]:
        if options.no_shrink:
            print(f"seed {seed} differs ({mode}): {' / '.join(lines)}", flush=True)
        else:
            print(runner.report(seed, mode, lines), flush=True)
    for seed, line in illegal[:10]:
        print(f"the generator made an illegal program, or the simulated driver is wrong: seed {seed}: {line}")
    print(
        f"differential: {ran} programs of {options.gpus} GPUs from seed {options.first}, {len(failed)} differ, "
        f"{len(illegal)} are illegal, {evicted / MIB:.0f} MiB evicted, {time.monotonic() - begin:.0f} s"
    )
    if evicted == 0:
        print("nothing was evicted: the small budget tests nothing")
        return 1
    return 1 if failed or illegal else 0


if __name__ == "__main__":
    sys.exit(main())
