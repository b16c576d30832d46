"""Evictions by the engine's threads and by the driver: eviction_test.py BUILD [NAME...] | --list"""

import os
import re
import signal
import sys
import tempfile
import time

from engine_rig import DEBUG, MIB, SMALL, Skipped, expect, main, run, start, test


def skip_without_cpus():
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("with one CPU the driver's call evicts")


@test
def evicted_by_threads():
    """Eviction by requests of the engine's threads, as on a real GPU, and the fallback where the driver refuses."""
    skip_without_cpus()
    names = (
        "iterations_over_blocks",
        "ranges_freed_and_reused",
        "copies_survive_eviction",
        "threads_with_own_streams",
        "producers_and_consumers",
        "streams_created_and_destroyed",
        "graphs_under_pressure",
    )
    for name in names:
        budget = 128 * MIB if name == "ranges_freed_and_reused" else SMALL
        unhooked = run(name)
        for how, by_threads in (("threads", True), ("fail", True), ("refused", False)):
            tight = run(name, budget, env={**DEBUG, "SIMGPU_REQUESTS": how})
            expect(tight.out == unhooked.out, f"{name}, {how}: results differ", f"{unhooked}\n{tight}")
            expect(
                tight.event("evictions")["by"] == ("threads" if by_threads else "driver"),
                f"{name}, {how}: the evicting side is logged",
                tight.err,
            )
            expect(tight.moved_bytes() > 0, f"{name}, {how}: nothing was evicted", str(tight))
    for how in ("threads", "fail", "refused"):
        env = {"SIMGPU_REQUESTS": how, "SLUICE_LOG_LEVEL": "INFO"}
        iterations = run("many_iterations_over_blocks", SMALL, env=env)
        peak = iterations.gpus()[0]["resident_peak_bytes"]
        # The engine notices failing requests after 64 of them, of 8 MiB each.
        expect(peak <= SMALL + (64 * 8 + 64) * MIB, f"iterations, {how}: the budget is kept", str(iterations))
        refusals = [event for event in iterations.events("evictions") if "reason" in event]
        expect(
            [event["by"] for event in refusals] == (["driver"] if how == "fail" else []),
            f"iterations, {how}: a refusal is logged once",
            iterations.err,
        )


@test
def discards_by_requests():
    """Freed memory is discarded by the engine's own requests, at once and in a stream's order, or written back."""
    skip_without_cpus()
    for name in ("freed_while_the_gpu_is_behind", "freed_and_reused_by_another_stream", "freed_and_written_again"):
        unhooked = run(name)
        discarded = {}
        for how in ("threads", "fail", "refused", "no threads"):
            env = {"SIMGPU_REQUESTS": how}
            if how == "no threads":
                env = {"SIMGPU_REQUESTS": "threads", "SLUICE_EVICTION_THREADS": "0"}
            tight = run(name, SMALL, env=env)
            expect(tight.out == unhooked.out, f"{name}, {how}: results differ", f"{unhooked}\n{tight}")
            discarded[how] = sum(gpu["discarded_bytes"] for gpu in tight.gpus())
        expect(discarded["threads"] > 0, f"{name}: nothing was discarded", str(discarded))
        expect(discarded["no threads"] > 0, f"{name}: nothing was discarded without threads", str(discarded))
        expect(discarded["refused"] == 0, f"{name}: the driver's call was used", str(discarded))


@test
def contexts_that_end_while_their_memory_is_evicted():
    """The driver frees the memory without a wait for the engine's threads and for other contexts' streams."""
    skip_without_cpus()
    name = "contexts_that_end_while_their_memory_is_evicted"
    expected = run(name).out
    threads = {"SIMGPU_REQUESTS": "threads"}
    ways = [threads | {"SIMGPU_REQUEST_DELAY_US": delay_us} for delay_us in ("0", "2000", "20000")]
    for env in (*ways, {}, threads | {"SLUICE_EVICTION_THREADS": "0"}):
        done = run(name, 96 * MIB, env=env)
        expect(done.out == expected, f"{env}: results differ", str(done))
        expect(done.moved_bytes() > 0, f"{env}: nothing was evicted", str(done))


@test
def number_of_eviction_threads():
    unhooked = run("many_iterations_over_blocks")
    took_ns = {}
    for threads in ("0", "1", "4"):
        env = {"SLUICE_EVICTION_THREADS": threads, "SLUICE_HOST_ACCESS": "0"}
        tight = run("many_iterations_over_blocks", SMALL, env=env)
        expect(tight.out == unhooked.out, f"SLUICE_EVICTION_THREADS={threads}: results differ", str(tight))
        took_ns[threads] = tight.gpus()[0]["now_ns"]
    expect(took_ns["4"] < 0.7 * took_ns["0"], "four threads are faster than the driver's call", str(took_ns))


@test
def context_waits_beside_prefetches():
    """cuCtxSynchronize waits for the application's work, and fetches for later launches go on beside the host."""
    unhooked = run("context_waits_beside_prefetches")
    tight = run("context_waits_beside_prefetches", SMALL, env={"SLUICE_HOST_ACCESS": "0"})
    expect(tight.out == unhooked.out, "results differ", str(tight))
    expect(tight.moved_bytes() > 0, "nothing was evicted", str(tight))
    found = re.search(r"^waits stream_ns=(\d+) context_ns=(\d+)$", tight.err, re.M)
    expect(found, "the scenario prints its times", tight.err)
    by_stream, by_context = int(found[1]), int(found[2])
    expect(by_context < 1.05 * by_stream, "a wait for the context takes as long as one for the stream", tight.err)


@test
def killed_while_bytes_move():
    """kill -9 at any time harms no other process, and the memory of the killed process can be used again."""
    with tempfile.TemporaryDirectory() as folder:
        shared = {"SIMGPU_STATE": f"{folder}/card", "SIMGPU_WINDOW_US": "1000"}
        expected = run("iterations_over_blocks").out
        killed = start("endless_launches", SMALL, env=shared)
        killed.stderr.readline()
        neighbour = start("iterations_over_blocks", SMALL, env=shared)
        time.sleep(0.2)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        out, err = neighbour.communicate(timeout=100)
        expect(neighbour.returncode == 0 and out == expected, "the neighbour computes the same", out + err)
        after = run("iterations_over_blocks", SMALL, env=shared)
        expect(after.out == expected, "a later process computes the same", str(after))


if __name__ == "__main__":
    sys.exit(main())
