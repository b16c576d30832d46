"""Launches, streams and threads: order_test.py BUILD [NAME...] | --list"""

import re
import subprocess
import sys

from engine_rig import (
    ALL_MODES,
    FETCHED,
    MIB,
    SMALL,
    Outcome,
    built,
    environment,
    expect,
    main,
    run,
    same,
    scenario,
    skip_if_sanitized,
    test,
)

scenario("threads", of="threads_with_own_streams", modes=ALL_MODES)
scenario("legacy_stream", of="legacy_stream_orders")
scenario("served_calls_in_the_legacy_stream")
scenario("producers_and_consumers")
scenario("streams_created_and_destroyed")
scenario("unseen_access", of="access_that_no_parameter_shows", modes=ALL_MODES)
scenario("written_before_pressure", modes=ALL_MODES)
scenario("values_written_by_a_stream", evicts=False)
scenario("waits_for_values_in_large_blocks")
scenario("waits_see_no_earlier_value")
scenario("wait_behind_an_hour_of_work")
scenario("many_waits_for_values")
scenario("values_are_seen_beside_a_call_that_waits")
scenario("others_queue_beside_a_copy_that_waits")
scenario("graphs_that_write_values")
scenario("nodes_of_values_answer_as_such")
scenario("nodes_of_values_change_their_memory")
scenario("nodes_of_one_value_change_their_memory")
scenario("calls_inside_device_memory_return_early", pressed=None)
scenario("calls_inside_device_memory_return_early_under_pressure", of="calls_inside_device_memory_return_early")
scenario("captured_values_change_their_memory")
scenario("captured_writes_of_nccl_repeat")
scenario("values_of_64_bits_change_at_once")
scenario("launches_left_to_faults_see_their_ends", env={"SIMGPU_PACE": "1"})
scenario("contexts_wait_for_an_event", evicts=False)
scenario("contexts_wait_for_an_event_with_freed_memory", pressed=256 * MIB)
scenario("contexts_wait_for_an_event_beside_waits_for_values", evicts=False)
scenario("events_behind_a_context_that_waits", evicts=False)
scenario("waits_for_a_context_that_waits", pressed=None)
scenario("memory_stays_while_its_context_waits", pressed=None)
scenario("freed_in_a_stream_of_another_gpu", profile="two-gpu", evicts=False)
scenario("free_beside_a_capture_waits_for_earlier_work", evicts=False)
scenario("free_beside_a_capture_waits_for_other_threads", evicts=False)
scenario("no_wait_on_the_host", of="launching_thread_opens_the_gate")


def thrash(*arguments, budget=SMALL, **settings):
    """Runs thrash_bench hooked on an H200."""
    env = environment(budget, "h200", more=settings)
    return subprocess.run([str(built("test", "thrash_bench")), *arguments], env=env, capture_output=True, text=True)


@test
def kinds_of_launch():
    """Cooperative launches, clusters, parameters in a buffer, PyTorch's struct of tensors.

    The memory that each touches is fetched before it runs, and little else is."""
    same("every_kind_of_launch", env=FETCHED)
    faulting = run("every_kind_of_launch", SMALL, env={**FETCHED, "SLUICE_PREFETCH": "off"}, status=None)
    expect(faulting.status != 0, "launches that fault fail the scenario", str(faulting))


@test
def remote_access_is_counted():
    """The exit line counts the bytes used remotely, the probe launches, and the cost of both."""
    for env, is_used in ({}, True), ({"SLUICE_HOST_ACCESS": "0"}, False):
        hooked = run("every_kind_of_launch", SMALL, env=env)
        for key in ("probe_launches_slow", "probe_lost_seconds", "map_seconds"):
            hooked.figure(key)
        expect(
            (hooked.figure("remote_bytes") > 0) == is_used and (hooked.figure("probe_launches") > 0) == is_used,
            f"used remotely with {env}: {is_used}",
            hooked.line(),
        )


@test
def launches_larger_than_the_budget_are_held_to_it():
    """Resident bytes at the end of many launches in quick succession.

    Rows are read from a table of four times the budget; or blocks are used that are cut out of one allocation of that
    size. The host waits after each 64 launches, or never."""
    skip_if_sanitized("thrash_bench needs the shim")
    for work, run_ahead in (("lookup", 64), ("pool", 64), ("pool", 0)):
        for mode in ("off", "predict"):
            done = thrash(work, "2048", "800", "1", str(run_ahead), SLUICE_PREFETCH=mode)
            found = re.search(r"resident at the end: (\d+) MiB", done.stderr)
            case = f"{work}, {run_ahead}, {mode}"
            expect(done.returncode == 0 and found, f"{case}: it ends well", done.stderr)
            # Time measurements bound the rows' bytes before the launch. Blocks that other launches faulted in are known
            # once the driver has counted them, and the host is eight launches ahead by then.
            max_mib = 512 + 128 if work == "lookup" else 2 * 512
            expect(int(found[1]) <= max_mib, f"{case}: at most {max_mib} MiB", done.stderr)


@test
def cheaper_access_is_logged_once():
    """Demand faults or remote access serve a kind of launch better: each is logged once, with the measured figures."""
    skip_if_sanitized("thrash_bench needs the shim")
    for work in ("lookup", "walk"):
        done = thrash(work, "2048", "800", SLUICE_LOG_LEVEL="INFO")
        expect(done.returncode == 0, f"{work}: it ends well", done.stderr)
        outcome = Outcome(0, "", done.stderr)
        # By faults: the milliseconds of a launch. Remotely: the rate.
        logged = (len(outcome.logged("WARN", " ms")), len(outcome.logged("INFO", " GB/s")))
        expect(logged == ((1, 0) if work == "lookup" else (0, 1)), f"{work}: it is logged once", done.stderr)
        faulting = outcome.figure("launches_by_faults")
        expect((faulting > 100) == (work == "lookup"), f"{work}: launches left to faults are counted", done.stderr)


@test
def big_kernel():
    def counted(hooked, tight):
        expect(hooked.figure("launches_over_budget") == 0, "no launch is over a budget that holds all", hooked.line())
        # Operands that are used remotely by choice make no launch go over its budget: the others are counted.
        expect(tight.figure("launches_over_budget") >= 1, "launches over the budget are counted", tight.line())

    same("launch_half_over_budget", check=counted, modes=ALL_MODES)
    same("launch_three_times_the_budget", check=counted, modes=ALL_MODES)


@test
def no_dependency_between_streams():
    def counted(_, tight):
        expect(tight.figure("launches_over_budget") > 0, "launches over the budget are counted", tight.line())

    same("streams_stay_independent", check=counted, evicts=False, modes=ALL_MODES)


@test
def over_budget_only_where_nothing_can_be_evicted():
    """One stream, and everything but the launch's own blocks is evictable: no launch needs to go over its budget."""
    for name in ("iterations_over_blocks", "many_iterations_over_blocks"):
        tight = run(name, SMALL)
        expect(tight.figure("launches_over_budget") == 0, f"{name}: launches over the budget", tight.line())


if __name__ == "__main__":
    sys.exit(main())
