"""Settings, the exit line and warnings: diagnostics_test.py BUILD [NAME...] | --list"""

import os
import re
import subprocess
import sys
import tempfile

from engine_rig import (
    DEBUG,
    GIB,
    LARGE,
    ROOT,
    SMALL,
    Skipped,
    built,
    environment,
    expect,
    is_sanitized,
    main,
    run,
    skip_if_sanitized,
    test,
)

ITERATIONS = "many_iterations_over_blocks"
# What the exit line has beside the metrics of proto/counters.def.
OTHER_KEYS = ["pid", "gpu", "budget_bytes", "factor", "fault_bytes_source", "hit_percent", "known_percent"]
WRONG = {
    "SLUICE_GPU_FRACTION": "1.5",
    "SLUICE_MEMORY_LIMIT": "many",
    "SLUICE_VISIBLE_MEMORY": "all",
    "SLUICE_MEMORY_FACTOR": "0",
    "SLUICE_COMPUTE_REQUEST": "-1",
    "SLUICE_COMPUTE_LIMIT": "2",
    "SLUICE_PREFETCH": "sometimes",
    "SLUICE_LOG_LEVEL": "LOUD",
    "SLUICE_UNMANAGED": "maybe",
    "SLUICE_BACKEND": "mapped",
    "SLUICE_HOST_ACCESS": "off",
    "SLUICE_OVERWRITES": "no",
    "SLUICE_DISCARD": "never",
    "SLUICE_READ_MOSTLY": "2",
    "SLUICE_LEARN": "some",
    "SLUICE_VMM": "device",
    "SLUICE_EVICTION_THREADS": "17",
    "SLUICE_DISABLE": "yes",
    "SLUICE_ON_ERROR": "abort",
    "ULMS_GPU_MEMORY_FACTOR": "1000",
    "ULMS_LOG_LEVEL": "loud",
}


def lines_with(err, *texts):
    return [line for line in err.splitlines() if all(text in line for text in texts)]


def gpu_gib(outcome, *keys):
    """The simulated GPUs' own count."""
    return sum(gpu[key] for gpu in outcome.gpus() for key in keys) / GIB


@test
def wrong_variables():
    probe = "iterations_over_blocks" if is_sanitized() else "sizes_show_the_fraction"  # the shim answers NVML
    expected = run(probe).out
    for name, value in WRONG.items():
        hooked = run(probe, LARGE, env={name: value})
        logged = hooked.logged("ERROR")
        expect(
            len(logged) == 1 and name in logged[0] and f"'{value}'" in logged[0] and "accepted" in logged[0],
            f"{name}={value}: one line with name, value and the accepted values",
            hooked.err,
        )
        expect(hooked.out == expected, f"{name}={value}: the process runs with the default", str(hooked))
    limited = run(probe, LARGE, env={"SLUICE_MANAGED_LIMIT": "lots"}, status=None)
    expect(
        "SLUICE_MANAGED_LIMIT" in limited.err and limited.status == 70,
        "a limit that cannot be read counts as one byte",
        str(limited),
    )
    both = run(probe, LARGE, env={"SLUICE_GPU_FRACTION": "0.5", "SLUICE_MEMORY_LIMIT": "1Gi"})
    logged = both.logged("ERROR", "accepted")
    expect(
        len(logged) == 2 and "gpu-fraction" in logged[0] and "memory-limit" in logged[1],
        "variables that contradict each other",
        both.err,
    )
    no_agent = {"SLUICE_SOCKET": "/nonexistent/agent.sock", "SLUICE_LOG_LEVEL": "INFO"}
    alone = run(probe, LARGE, env=no_agent)
    unbounded = run(probe, LARGE, env={**no_agent, "SLUICE_GPU_MEMORY": "", "SLUICE_GPU_FRACTION": "1"})
    for outcome in (alone, unbounded):
        warned = outcome.logged("WARN", "SLUICE_SOCKET", no_agent["SLUICE_SOCKET"])
        expect(len(warned) == 1, "no agent at the socket", outcome.err)
    expect(alone.out == expected and alone.event("start")["budget_bytes"] == LARGE, "the variables' budget", alone.err)
    begin = unbounded.event("start")
    expect(begin["budget_bytes"] == begin["gpu_bytes"], "no agent and no budget", unbounded.err)
    alias = run("iterations_over_blocks", SMALL, env={"ULMS_GPU_MEMORY_FACTOR": "90", "ULMS_LOG_LEVEL": "INFO"})
    expect(alias.figure("factor") == 90 and "INFO" in alias.err, "PUMP's names are honoured", alias.err)


@test
def disk_full_while_recording():
    if not os.path.exists("/dev/full"):
        raise Skipped("no /dev/full")
    hooked = run("iterations_over_blocks", LARGE, env={"SLUICE_RECORD": "/dev/full"})
    expect(hooked.out == run("iterations_over_blocks").out, "the program runs on", str(hooked))
    expect(len(lines_with(hooked.err, "/dev/full")) == 1, "the failure is logged once", hooked.err)


@test
def array_copies_are_recorded():
    def events(rounds):
        with tempfile.TemporaryDirectory() as folder:
            recorded = f"{folder}/recorded.sltrace"
            run("copies_beside_an_array", LARGE, env={"SLUICE_RECORD": recorded, "ROUNDS": str(rounds)})
            command = [str(built("bin", "sluice-trace")), "info", recorded]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return int(re.search(r"(\d+) events", text)[1])

    few, more = events(1), events(6)
    expect(more - few == 10, "five copies to the array and five back", f"{few} and {more} events")


@test
def stream_ordered_allocations_are_recorded():
    skip_if_sanitized("the replayer needs the shim")
    with tempfile.TemporaryDirectory() as folder:
        recorded, replayed = f"{folder}/recorded.sltrace", f"{folder}/replayed.sltrace"
        run("pool_keeps_memory", LARGE, env={"SLUICE_RECORD": recorded})
        env = environment(LARGE, more={"SLUICE_RECORD": replayed})
        subprocess.run([str(built("bin", "sluice-replay")), recorded], env=env, capture_output=True, check=True)
        for file in (recorded, replayed):
            text = subprocess.run(
                [str(built("bin", "sluice-trace")), "info", file], capture_output=True, text=True, check=True
            ).stdout
            expect(re.search(r"^  28 allocations, 28 of them in a stream's order$", text, re.M), file, text)


@test
def diagnostics():
    tight = run(ITERATIONS, SMALL)
    line = tight.line()
    expect(line["fault_bytes_source"] == "counted", "the driver counts the faulted bytes", line)
    expect(
        line["live_bytes"] == 0 or line["live_peak_bytes"] >= line["live_bytes"],
        "the peak is at least the live bytes",
        line,
    )
    expect(line["live_peak_bytes"] == GIB, "16 blocks of 64 MiB were live", line)
    counting = run(ITERATIONS, SMALL, env={**DEBUG, "SLUICE_LEARN": "0"})  # samples of resident chunks are faulted in
    counts = [event["to_device_bytes"] for event in counting.events("driver_counters") if event["faults"] == 0]
    moved_in = gpu_gib(counting, "fault_bytes", "prefetch_in_bytes")
    expect(
        counts and abs(counts[-1] / GIB - moved_in) < 0.01,
        f"at DEBUG the driver's own totals, {moved_in} GiB",
        counting.err[-2000:],
    )
    denied = run(ITERATIONS, SMALL, env={**DEBUG, "SIMGPU_UVM_TOOLS": "0"})
    expect(
        denied.figure("fault_bytes_source") == "estimated",
        "faulted bytes are estimated where the driver does not count them",
        denied.line(),
    )
    refused = denied.events("fault_counters")
    expect(
        len(refused) == 1 and "/dev/nvidia-uvm-tools: No such file" in refused[0]["reason"],
        "the reason is logged once at DEBUG",
        denied.err,
    )
    expect(denied.out == tight.out, "results differ where the driver does not count", str(denied))
    (slow,) = tight.events("slow")
    expect(
        (slow["live_bytes"], slow["budget_bytes"]) == (GIB, SMALL)
        and slow["fetched_bytes"] == line["fetched_bytes"]
        and 0 < slow["stall_percent"] <= 100
        and slow["advice"],
        "one line explains the slowness",
        tight.err,
    )
    faulting = run(ITERATIONS, SMALL, env={"SLUICE_PREFETCH": "off"})
    (slow,) = faulting.events("slow")
    expect(
        slow["stall_percent"] == "unknown" and slow["fetched_bytes"] == 0 < slow["fault_bytes"],
        "with demand paging no share of the time is claimed",
        faulting.err,
    )
    fits = run(ITERATIONS, LARGE)
    expect("WARN" not in fits.err, "no warning where all fits", fits.err)
    expect(
        fits.figure("fault_bytes") == 0 and fits.figure("fault_bytes_source") == "none",
        "nothing is requested of the driver where all fits",
        fits.line(),
    )
    expect(fits.out == tight.out and "sluice" not in fits.out, "stdout belongs to the program", fits.out)


@test
def keys_are_the_names_of_metrics():
    """Each counter that is a metric has its name in the exit line, and so on the page of metrics; no other key has."""
    counters = (ROOT / "proto" / "counters.def").read_text()
    metrics = re.findall(r'^SLUICE_COUNTER\(\w+, \w+, \w+, \S+, "(\w+)"', counters, re.M)
    page = re.findall(r"^\| `(sluice_\w+)` \|", (ROOT / "docs/operate/metrics.md").read_text(), re.M)
    line = run(ITERATIONS, SMALL).line()
    keys = [key for key in line if key not in OTHER_KEYS]
    expect(len(metrics) > 20 and set(metrics) <= set(page), "the page lists the metrics", metrics)
    expect(keys == [name.removeprefix("sluice_").removesuffix("_total") for name in metrics], "keys", line)
    expect([key for key in line if key not in keys] == OTHER_KEYS, "the other keys", line)
    expect("sluice_budget_bytes" in page, "the budget is a metric of the agent's own", page)


def compare(case, hooked, has_faults, above):
    """Fetched and faulted bytes of the exit line may differ from the GPU's count by a share above and below it."""
    for figure, key in (("fault_bytes", "fault_bytes"), ("fetched_bytes", "prefetch_in_bytes")):
        logged, true = hooked.figure(figure) / GIB, gpu_gib(hooked, key)
        below = above if above < 0.15 and figure == "fault_bytes" else 0.15
        expect(
            (1 - below) * true - 0.02 <= logged <= (1 + max(above, below)) * true + 0.02,
            f"{case}, {figure}: {logged:.2f} GiB, and the GPU counted {true:.2f}",
            hooked.line(),
        )
        if figure == "fault_bytes":
            expect((true > 0.1) == has_faults, f"{case}: faults", f"the GPU counted {true:.2f} GiB")


def agree(case, name, budget, has_faults, env=None, above=0.15):
    """Where the driver counts 2 % are accepted; where the engine estimates the share `above`."""
    env = env or {}
    compare(f"{case}, counted", run(name, budget, env=env), has_faults, 0.02)
    compare(f"{case}, estimated", run(name, budget, env={**env, "SIMGPU_UVM_TOOLS": "0"}), has_faults, above)


@test
def bytes_by_faults_agree_with_the_gpu():
    """Fetched and faulted bytes of the exit line agree with the simulated GPU's count, counted or estimated."""
    agree("fits", "iterations_over_blocks", LARGE, False)
    for name in (ITERATIONS, "written_before_pressure"):
        agree(f"{name}, fetched", name, SMALL, False)
        agree(f"{name}, off", name, SMALL, True, {"SLUICE_PREFETCH": "off"})
    for mode in ("off", "launch"):
        alone = {"SLUICE_PREFETCH": mode, "SLUICE_HOST_ACCESS": "0"}
        agree(f"larger than the budget, {mode}", "oversized_launches_apart", SMALL, True, alone)
        # Back to back a launch still uses chunks whose eviction is under way: the estimate is higher then, never lower.
        case = f"larger than the budget, back to back, {mode}"
        agree(case, "launch_three_times_the_budget", SMALL, True, alone, above=0.6)
    two = run("ring_of_peer_reads", SMALL, profile="two-gpu", env={"SLUICE_PREFETCH": "off"})
    logged = [x["fault_bytes"] / GIB for x in two.lines() if x["fault_bytes_source"] == "counted"]
    true = [gpu["fault_bytes"] / GIB for gpu in two.gpus()]
    expect(
        len(logged) == 2 and all(abs(x - t) < 0.02 and t > 0.1 for x, t in zip(logged, true)),
        f"each GPU has its own count: {true} GiB",
        two.err,
    )
    agree("the driver's queues are full", "launching_thread_opens_the_gate", SMALL, True, {"SLUICE_HOST_ACCESS": "0"})


if __name__ == "__main__":
    sys.exit(main())
