"""Runs scenarios of engine_scenarios on the simulated GPU, with and without the hook, and compares their output.

Each *_test.py of this folder registers its tests here: a scenario with its settings, or a function where a test needs
more than that. SCRIPT BUILD [NAME...] runs them; SCRIPT --list prints their names.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "lib"))
import exit_line  # noqa: E402
from harness import Failed, Skipped  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
SMALL, LARGE = 512 * MIB, 6 * GIB
ALL_MODES = ("off", "launch", "predict")
FETCHING_MODES = ("launch", "predict")
# Everything that a launch names is fetched, and the whole budget may be filled.
FETCHED = {"SLUICE_HOST_ACCESS": "0", "SLUICE_MEMORY_FACTOR": "100"}
DEBUG = {"SLUICE_LOG_LEVEL": "DEBUG"}

TESTS = {}
_build = None
_is_sanitized = False


def expect(condition, what, detail=""):
    if not condition:
        raise Failed(f"{what}\n{detail}")


def skip_if_sanitized(reason):
    """With a sanitizer the engine is part of engine_scenarios: there is no shim, and no other program is hooked."""
    if _is_sanitized:
        raise Skipped(reason)


def is_sanitized():
    return _is_sanitized


def built(*parts):
    """The path of a file in the build folder."""
    return _build.joinpath(*parts)


class Outcome:
    """How a process ended: its status, its output, and the simulated GPU's own figures."""

    def __init__(self, status, out, err, stats=None):
        self.status, self.out, self.err, self.stats = status, out, err, stats or {}

    def __str__(self):
        return f"status {self.status}\nstdout {self.out[-2000:]}\nstderr {self.err[-3000:]}\nGPU {self.stats}"

    def lines(self):
        """The exit lines as dicts, one for each GPU of each process."""
        return exit_line.parse(self.err)

    def line(self):
        lines = self.lines()
        expect(lines, "no exit line", str(self))
        return lines[-1]

    def figure(self, key):
        """A figure of the last exit line."""
        line = self.line()
        expect(key in line, f"no {key} in the exit line", line)
        return line[key]

    def events(self, name):
        """The events of this name that the hook logged, as dicts of their keys; most need DEBUG."""
        return exit_line.events(self.err, name)

    def logged(self, level, *names):
        """The lines of a level that hold these names and are no events."""
        return exit_line.logged(self.err, level, *names)

    def event(self, name):
        """The first of these events."""
        events = self.events(name)
        expect(events, f"no event {name}", str(self))
        return events[0]

    def gpus(self):
        """One dict of figures for each simulated GPU."""
        return self.stats.get("cards") or [self.stats]

    def moved_bytes(self):
        """Bytes that were moved off the GPUs, by the engine or by the driver."""
        return sum(g.get("prefetch_out_bytes", 0) + g.get("evicted_bytes", 0) for g in self.gpus())


def environment(budget, profile="card-8g", driver="simgpu", more=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    env["LD_LIBRARY_PATH"] = str(built("lib", driver))
    env["SIMGPU_PROFILE"] = profile
    env["SIMGPU_DEADLOCK_MS"] = "20000"
    if _is_sanitized:
        env["TSAN_OPTIONS"] = f"halt_on_error=1 die_after_fork=0 suppressions={HERE.parent / 'tsan.supp'}"
        env["ASAN_OPTIONS"] = "detect_leaks=0"
        env["SLUICE_DISABLE"] = "1"
    if budget:
        env["SLUICE_GPU_MEMORY"] = str(budget)
        if _is_sanitized:
            del env["SLUICE_DISABLE"]
        else:
            env["LD_PRELOAD"] = str(built("lib", "libsluice.so"))
    env.update(more or {})
    return env


def scenarios_program():
    return str(built("test", "engine_scenarios"))


def start(name, budget=None, profile="card-8g", driver="simgpu", env=None):
    return subprocess.Popen(
        [scenarios_program(), name],
        env=environment(budget, profile, driver, env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    name,
    budget=None,
    profile="card-8g",
    driver="simgpu",
    env=None,
    status=0,
    command=(),
    seconds=150,
    stderr=subprocess.PIPE,
):
    """Runs a scenario to its end; without a budget it runs unhooked. `status` None accepts any exit status."""
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "stats.json"
        done = subprocess.run(
            [*command, scenarios_program(), name],
            env=environment(budget, profile, driver, {"SIMGPU_STATS": str(figures), **(env or {})}),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=seconds * (5 if _is_sanitized else 1),
        )
        stats = json.loads(figures.read_text()) if figures.exists() else {}
    outcome = Outcome(done.returncode, done.stdout, done.stderr or "", stats)
    expect(
        status is None or outcome.status == status,
        f"{name}: status {outcome.status} where {status} was expected",
        str(outcome),
    )
    return outcome


def gpu_uuid():
    """The UUID of the simulated GPU, as the hook logs it."""
    output = run("vmm_memory_counts", SMALL, env={"SLUICE_VMM": "unmanaged"}).err
    return re.search(r"GPU-[0-9a-f-]+", output)[0].encode()


def same(
    name,
    pressed=SMALL,
    full=LARGE,
    evicts=True,
    profile="card-8g",
    driver="simgpu",
    env=None,
    check=None,
    modes=("predict",),
):
    """Runs a scenario unhooked, hooked at full budget, and under pressure in each prefetch mode.

    All runs must print the same. Under pressure bytes must have moved off the GPU, unless `evicts` is false.
    """
    own = {key: value for key, value in (env or {}).items() if not key.startswith(("SLUICE_", "SIMGPU_"))}
    unhooked = run(name, profile=profile, driver=driver, env=own)
    hooked = run(name, full, profile, driver, env)
    expect(hooked.out == unhooked.out, f"{name}: results differ at full budget", f"{unhooked}\n{hooked}")
    for mode in modes if pressed else ():
        tight = run(name, pressed, profile, driver, {"SLUICE_PREFETCH": mode, **(env or {})})
        expect(tight.out == unhooked.out, f"{name}: results differ under pressure ({mode})", f"{unhooked}\n{tight}")
        if evicts:
            expect(tight.moved_bytes() > 0, f"{name}: nothing was evicted under pressure ({mode})", str(tight))
        if check:
            check(hooked, tight)


def test(function):
    TESTS[function.__name__] = function
    return function


def scenario(name, of=None, **settings):
    """Registers a test that runs a scenario as same() does; `of` is the scenario where its name is another."""
    TESTS[name] = lambda: same(of or name, **settings)


def explained(source, replayed):
    """The text of `sluice-trace explain`."""
    command = [str(built("bin", "sluice-trace")), "explain", source, replayed]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == 0, "a trace is explained", done.stderr)
    return done.stdout


def main():
    global _build, _is_sanitized
    if sys.argv[1:] == ["--list"]:
        print("\n".join(sorted(TESTS)))
        return 0
    _build = pathlib.Path(sys.argv[1]).resolve()
    _is_sanitized = "SLUICE_SANITIZE:STRING=\n" not in (_build / "CMakeCache.txt").read_text()
    unknown = [name for name in sys.argv[2:] if name not in TESTS]
    if unknown:
        print(f"no such test: {unknown}; accepted: {sorted(TESTS)}", file=sys.stderr)
        return 2
    status = 0
    for name in sys.argv[2:] or sorted(TESTS):
        begin = time.monotonic()
        try:
            TESTS[name]()
            print(f"ok: {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Skipped as why:
            print(f"SKIP: {name}: {why}", flush=True)
            status = status or (4 if len(sys.argv) == 3 else 0)
        except (Failed, subprocess.TimeoutExpired) as why:
            print(f"FAILED: {name}: {why}", flush=True)
            status = 1
    return status
