"""The replayer on the simulated GPU: replay_test.py BUILD. Without the hook, with it, under pressure, wrong input."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1])
SIM = {"LD_LIBRARY_PATH": str(build / "lib" / "simgpu"), "SIMGPU_PROFILE": "card-8g"}
DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "experiments" / "traces"
TABLE = pathlib.Path(__file__).resolve().parents[2] / "experiments" / "bench" / "residency_table.py"
HOOK = {"LD_PRELOAD": str(build / "lib" / "libsluice.so")}
# The largest allowed part of the predicted bytes that the launches do not touch (docs/benchmarks.md). decode's is
# cuBLAS' workspace: split products use 0.1 of its 32 MiB.
MAX_UNTOUCHED = {"convnet": 0.06, "decode": 0.42, "transformer": 0.10}
failures = []


def check(what, condition, detail=""):
    print(("ok: " if condition else "FAILED: ") + what + ("" if condition else f": {detail}"), flush=True)
    if not condition:
        failures.append(what)


def run(program, *arguments, env=None, seconds=120):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
    done = subprocess.run(
        [build / "bin" / program, *map(str, arguments)],
        env={**clean, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return done.returncode, done.stdout, done.stderr


def main(folder):
    trace = folder / "t.sltrace"
    shape = ["--layers", "4", "--width", "1024", "--tokens", "1024", "--vocabulary", "8000", "--steps", "5"]
    check("synth", run("sluice-trace", "synth", "transformer", trace, *shape)[0] == 0)
    _, text, _ = run("sluice-trace", "bound", trace, "--json")
    live, kernels = json.loads(text)["peak_live_bytes"], json.loads(text)["kernel_ms"]

    status, out, err = run("sluice-replay", trace, "--json", env=SIM)
    check("plays without the hook", status == 0, err)
    plain = json.loads(out)
    check(
        "a step that fits takes little more than its kernels' time",
        kernels <= plain["median_ms"] < 2 * kernels + 5,
        plain["median_ms"],
    )
    check("no misuse without the hook", plain["simulated"]["misuses"] == 0, plain)

    status, out, err = run("sluice-replay", trace, "--json", env={**SIM, **HOOK, "SLUICE_GPU_MEMORY": "6Gi"})
    check("plays hooked at full budget", status == 0, err)
    if status == 0:
        fits = json.loads(out)
        check(
            "hooked within the budget: no bytes move",
            fits["simulated"]["prefetch_out_bytes"] == 0 and fits["simulated"]["driver_evicted_bytes"] == 0,
            fits,
        )
        check("the hook writes nothing to stdout", out.count("\n") == 1, out)

    budget = int(live * 0.6)
    for mode in ("off", "launch", "predict"):
        status, out, err = run(
            "sluice-replay",
            trace,
            "--json",
            env={**SIM, **HOOK, "SLUICE_GPU_MEMORY": str(budget), "SLUICE_PREFETCH": mode},
        )
        check(f"plays at 0.6 of its live bytes, prefetch {mode}", status == 0, err)
        if status != 0:
            continue
        sim = json.loads(out)["simulated"]
        check(f"prefetch {mode}: memory is evicted", sim["prefetch_out_bytes"] + sim["driver_evicted_bytes"] > 0, sim)
        check(f"prefetch {mode}: no misuse", sim["misuses"] == 0, sim)
        if mode != "off":
            check(
                f"prefetch {mode}: most bytes are fetched, few fault",
                sim["prefetch_in_bytes"] > 5 * sim["fault_bytes"],
                sim,
            )

    # Reports go through the shim and the stand-in library to the engine. A program may also run without them.
    status, out, err = run(
        "sluice-replay", trace, "--json", "--no-reports", env={**SIM, **HOOK, "SLUICE_GPU_MEMORY": str(budget)}
    )
    check("plays without reports", status == 0, err)

    status, _, err = run("sluice-replay", trace, env={"LD_LIBRARY_PATH": str(folder)})
    check("no driver: one sentence, status 1", (status, err.count("\n")) == (1, 1) and "libcuda.so.1" in err, err)
    status, _, err = run("sluice-replay", folder / "absent", env=SIM)
    check(
        "no file: one sentence, status 1",
        status == 1 and err == f"sluice-replay: {folder / 'absent'}: No such file or directory\n",
        err,
    )
    status, _, err = run("sluice-replay", trace, "--steps", "none", env=SIM)
    check("a wrong option: status 2", status == 2 and "--steps" in err, err)
    (folder / "bad").write_bytes(trace.read_bytes()[:9] + b"\xff" * 40)
    status, _, err = run("sluice-replay", folder / "bad", env=SIM)
    check("a wrong file: the error names the byte", status == 1 and "byte 8" in err, err)
    data = trace.read_bytes()
    (folder / "cut").write_bytes(data[: len(data) // 2])
    status, out, err = run("sluice-replay", folder / "cut", env=SIM)
    check("a cut recording is played up to its cut", status == 0 and "cut off" in err and "launches" in out, err)

    unused(folder)
    # The host limits a decoder's step: on a host that is twice as fast, it takes little more than half the time.
    ms = [
        json.loads(
            run(
                "sluice-replay",
                DATA / "decode.sltrace",
                "--json",
                "--steps",
                4,
                *pace,
                env={**SIM, "SIMGPU_PROFILE": "h200"},
            )[1]
        )["median_ms"]
        for pace in ((), ("--host-pace", 0.5))
    ]
    check("plays at another host's pace", 0.5 * ms[0] <= ms[1] < 0.6 * ms[0], ms)
    for name in ("transformer", "convnet", "decode"):
        recorded(folder, name)
    for name in ("trainer", "resnet", "moe", "jax"):
        recorded_by_hook(name)
    if (build / "bin" / "sluice").exists():
        commands(folder, trace, budget)


def unused(folder):
    """Each launch fetches a block of 64 MiB whole and touches 16 MiB: three quarters of the bytes are unused."""
    trace = folder / "parts.sltrace"
    subprocess.run([build / "test" / "parts_trace", trace], check=True)
    env = {
        **SIM,
        **HOOK,
        "SLUICE_GPU_MEMORY": str(512 << 20),
        "SLUICE_MEMORY_FACTOR": "100",
        "SLUICE_PREFETCH": "launch",
        "SLUICE_HOST_ACCESS": "0",
    }
    status, out, err = run("sluice-replay", trace, "--json", env=env)
    check("plays launches that touch a part of their blocks", status == 0, err)
    sim = json.loads(out)["simulated"]
    check(
        "fetched bytes that stay untouched are counted",
        sim["unused_in_bytes"] / max(1, sim["total_in_bytes"]) == 0.75 and sim["total_in_bytes"] > 1 << 30,
        sim,
    )
    table = run_table(trace)
    check("the table prints them", table is not None and table.endswith(" 75.0 of 6144 |"), table)


def run_table(trace):
    """The row of residency_table.py for this trace at half of its live bytes: fetches at launch, no prefetch."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
    done = subprocess.run(
        [TABLE, "--build", build, "--traces", trace, "--budgets", "2", "--engines", "sluice"],
        env={**clean, "SLUICE_PREFETCH": "launch", "SLUICE_HOST_ACCESS": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return next((line for line in reversed(done.stdout.splitlines()) if line.startswith("| parts")), done.stderr)


def recorded(folder, name):
    """A recorded trace at half of its live bytes: no misuse, faster than demand paging, access sets cover the truth."""
    trace, h200 = DATA / f"{name}.sltrace", {**SIM, "SIMGPU_PROFILE": "h200"}
    _, text, _ = run("sluice-trace", "bound", trace, "--json")
    budget = str(json.loads(text)["peak_live_bytes"] // 2)
    times = {}
    for mode in ("off", "predict"):
        env = {
            **h200,
            **HOOK,
            "SLUICE_GPU_MEMORY": budget,
            "SLUICE_PREFETCH": mode,
            "SLUICE_RECORD": str(folder / mode),
        }
        status, out, err = run("sluice-replay", trace, "--json", "--warm-up", "2", env=env)
        check(f"{name} plays at half of its live bytes, prefetch {mode}", status == 0, err)
        if status != 0:
            return
        figures = json.loads(out)
        times[mode] = figures["median_ms"]
        check(
            f"{name}, prefetch {mode}: recorded, not synthetic, and no misuse",
            not figures["synthetic"] and figures["simulated"]["misuses"] == 0,
            out,
        )
    check(f"{name}: prefetch beats demand paging", times["predict"] < times["off"], times)
    status, text, err = run("sluice-trace", "explain", trace, folder / "predict", "--json")
    check(f"{name}: explain compares access sets with the truth", status == 0, err)
    sums = json.loads(text)
    check(f"{name}: touched bytes were predicted", sums["covered_bytes"] >= 0.995 * sums["touched_bytes"] > 0, sums)
    untouched = 1 - sums["covered_bytes"] / sums["predicted_bytes"]
    check(f"{name}: few other bytes were predicted", untouched <= MAX_UNTOUCHED[name], untouched)
    estimated, truly = sums["working_set_bytes"], sums["working_set_touched_bytes"]
    if estimated == truly == 0:
        print(f"SKIP {name}: the working set against the truth: the replay took less than a second", flush=True)
    else:
        check(f"{name}: the working set is the truth's within a tenth", 0.9 <= estimated / truly <= 1.1, sums)


def recorded_by_hook(name):
    """A recording without the truth column, whose launches also name bytes that no tensor holds: no misuse."""
    trace = DATA / f"{name}.sltrace"
    _, text, _ = run("sluice-trace", "bound", trace, "--json")
    budget = str(json.loads(text)["peak_live_bytes"] * 6 // 10)
    env = {**SIM, "SIMGPU_PROFILE": "h200", **HOOK, "SLUICE_GPU_MEMORY": budget, "SLUICE_MEMORY_FACTOR": "100"}
    times = {}
    for mode in ("off", "predict"):
        steps = ["--steps", "4", "--warm-up", "2"]
        status, out, err = run("sluice-replay", trace, "--json", *steps, env={**env, "SLUICE_PREFETCH": mode})
        check(f"{name} plays at 0.6 of its live bytes, prefetch {mode}", status == 0, err)
        if status != 0:
            return
        figures = json.loads(out)
        times[mode] = figures["median_ms"]
        check(f"{name}, prefetch {mode}: no misuse", figures["simulated"]["misuses"] == 0, out)
    check(f"{name}: prefetch beats demand paging", times["predict"] < times["off"], times)


def commands(folder, trace, budget):
    """`sluice record` and `sluice replay`."""
    recorded = folder / "again.sltrace"
    status, _, err = run(
        "sluice",
        "record",
        "--gpu",
        "sim",
        "-o",
        recorded,
        "--",
        build / "bin" / "sluice-replay",
        trace,
        env={"SIMGPU_PROFILE": "card-8g"},
    )
    check("sluice record of a replay", status == 0 and recorded.exists(), err)
    if recorded.exists():
        _, text, _ = run("sluice-trace", "info", recorded)
        _, first, _ = run("sluice-trace", "info", trace)
        launches = [t.split(" launches")[0].split()[-1] for t in (text, first)]
        check("the recording holds the same launches", launches[0] == launches[1], text)
    status, out, err = run(
        "sluice", "replay", trace, "--gpu", "sim", "--profile", "card-8g", "--memory", str(budget), "--json"
    )
    check("sluice replay", status == 0 and json.loads(out)["launches"] > 0, err)
    status, out, err = run("sluice", "replay", trace, "--gpu", "sim", "--profile", "card-8g", "--explain")
    check("sluice replay --explain", status == 0 and "predicted" in out.splitlines()[-1], err + out[-300:])
    sets = re.findall(
        r"^#(\d+) .*: (?:(?:parameters|library|graph|learned|copy) [0-9.]+ MiB|nothing predicted)", out, re.M
    )
    of_all = re.search(r"^(\d+) launches", out, re.M)
    check(
        "each launch's access set is printed by source",
        of_all and [int(n) for n in sets] == list(range(int(of_all[1]))),
        out[:600],
    )
    check("this trace's come from parameters", re.search(r": parameters [0-9.]+ MiB", out), out[:600])
    status, _, err = run("sluice", "replay", trace, "--gpu", "sim", "--prefetch", "maybe")
    check("a wrong setting: status 2 and what is accepted", status == 2 and "maybe" in err and "predict" in err, err)
    status, _, err = run("sluice", "replay", trace, "--gpu", "sim", "--profile", folder)
    check("a profile that is a folder: status 2 and the reason", status == 2 and "cannot be read" in err, (status, err))
    status, _, err = run(
        "sluice", "replay", trace, "--gpu", "sim", "--steps", 1, "--explain", env={"TMPDIR": str(folder / "none")}
    )
    check("no temporary folder for --explain: status 2", status == 2 and "TMPDIR" in err, (status, err))
    status, _, err = run("sluice", "record", "--gpu", "sim", "-o", folder / "none" / "x", "--", "true")
    check(
        "an output that cannot be written: status 2, before the program runs",
        status == 2 and "No such file" in err,
        err,
    )
    status, _, err = run("sluice", "record", "--gpu", "sim", "-o", folder / "y", "--", "sh", "-c", "exit 7")
    check(
        "a program that makes no CUDA call: reported, its own status kept",
        status == 7 and "nothing was recorded" in err,
        (status, err),
    )


for needed in ("lib/simgpu/libcuda.so.1", "lib/libsluice.so", "lib/libsluice_engine.so", "bin/sluice-replay"):
    if not (build / needed).exists():
        print(f"SKIP: {build / needed} is not built")
        sys.exit(4)
with tempfile.TemporaryDirectory(prefix="sluice-replay-test.") as scratch:
    main(pathlib.Path(scratch))
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
