"""Contexts, order and lifetimes of legal programs: lifetime_test.py BUILD [NAME...] | --list

Most scenarios fit the budget: these faults need no pressure.
"""

import re
import sys

from engine_rig import ALL_MODES, GIB, MIB, expect, is_sanitized, main, run, same, scenario, test

scenario("legacy_streams_of_two_contexts", evicts=False)
scenario("legacy_stream_beside_a_capture", evicts=False)
scenario("captures_of_one_thread_in_two_contexts", profile="two-gpu", evicts=False)
scenario("captures_that_are_dropped", evicts=False)
scenario("threads_end_with_default_streams", pressed=None)
scenario("own_discard_of_freed_memory", pressed=None)
scenario("freed_beside_a_capture_and_a_destroyed_stream", evicts=False)
scenario("free_waits_for_green_contexts", evicts=False)
scenario("context_waits_are_whole")
scenario("free_waits_for_no_later_work", evicts=False)
scenario("free_waits_for_no_other_context", pressed=None)
scenario("free_in_the_legacy_stream_behind_a_destroyed_stream", evicts=False)
scenario("stream_ordered_free_does_not_wait", pressed=None)
scenario("free_waits_without_a_lock", pressed=None)
scenario("stream_ordered_free_beside_a_capture", pressed=None)
scenario("advice_ends_with_its_memory", pressed=None)
scenario("frees_that_the_driver_refuses", evicts=False)
scenario("memory_info_with_one_output", evicts=False)
scenario("pool_memory_outlives_its_context")
scenario("pool_memory_outlives_the_primary_context")
scenario("releases_beyond_the_last_are_refused", pressed=None)
scenario("primary_context_is_active_while_the_program_holds_it", pressed=None)
scenario("pool_memory_outlives_a_created_context")
scenario("reset_behind_the_last_release", evicts=False)
scenario("released_memory_beside_memory_of_a_pool", pressed=None)
scenario("threads_make_and_end_contexts", pressed=None)
scenario("value_waits_outlive_green_contexts", pressed=None)
scenario("primary_context_ends_with_its_last_green_context")
scenario("functions_end_with_their_context", pressed=64 * MIB, evicts=False)
scenario("functions_end_with_their_library", pressed=64 * MIB, evicts=False)
scenario("kernels_outlive_contexts")
scenario("launches_of_a_late_destructor", modes=ALL_MODES)
scenario("green_contexts", pressed=None)
scenario("green_contexts_count")
scenario("calls_from_a_profiler_inside_a_call", modes=ALL_MODES)
scenario("synchronize_a_named_context", profile="two-gpu", pressed=None)
scenario("freed_behind_a_copy_of_another_gpu", profile="two-gpu", pressed=80 * MIB)
for name in (
    "copies_on_a_stream_of_another_gpu",
    "free_waits_for_copies_of_other_contexts",
    "access_of_another_gpu_ends",
    "synchronization_waits_for_no_copy_of_another_context",
    "contexts_end_beside_frees_that_wait_for_their_copies",
    "frees_wait_for_copies_of_a_primary_context_that_began_again",
    "memory_freed_beside_another_gpu",
    "stream_destroyed_beside_another_gpu",
    "allocations_on_a_stream_of_another_gpu",
    "pools_keep_their_memory",
    "context_handles_come_again_on_another_gpu",
    "green_contexts_of_two_gpus_end_at_once",
):
    scenario(name, profile="two-gpu", pressed=None)


def growth(outcome):
    """KiB of host memory that the scenario grew by, the simulated GPU's own included."""
    return int(re.search(r"^grown by (-?\d+) KiB$", outcome.err, re.M)[1])


def slowdown(outcome):
    """How many times longer the last rounds of the scenario took than the first."""
    first, last = map(int, re.search(r"^first (\d+), last (\d+)$", outcome.err, re.M).groups())
    return last / first


def no_quarantine():
    """Freed memory that a sanitizer keeps apart would count."""
    options = "detect_leaks=0:quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    return {"ASAN_OPTIONS": options} if is_sanitized() else {}


@test
def streams_modules_and_threads_end():
    """Ten thousand streams and modules, a thousand threads: host memory does not grow, under pressure either."""
    for name in (
        "ten_thousand_streams",
        "ten_thousand_modules",
        "a_thousand_threads",
        "a_thousand_threads_that_launch_late",
    ):
        env = no_quarantine()
        unhooked = growth(run(name, env=env))
        if is_sanitized() and name.endswith("late"):
            continue  # a sanitizer's own data of such threads stays
        for budget in (GIB // 2, 6 * GIB):
            hooked = growth(run(name, budget, env=env))
            expect(hooked - unhooked <= 4096, f"{name}: {hooked} KiB more, {unhooked} without the hook")


def expect_no_trend(*names):
    """Ten thousand rounds: host memory and the time of a round do not grow."""
    for name in names:
        unhooked = run(name, env=no_quarantine())
        for budget in (GIB // 2, 6 * GIB):
            for _attempt in range(6):  # other processes disturb a run by half its time
                hooked = run(name, budget, env=no_quarantine())
                slower = slowdown(hooked) / max(1, slowdown(unhooked))
                if slower <= 1.2:
                    break
            expect(slower <= 1.2, f"{name}: a round takes {slower:.2f} times as long in the end", str(hooked))
            grown = growth(hooked) - growth(unhooked)
            # The predictor's log fills: 16,384 launches and 131,072 references take 5.5 MiB. A sanitizer has data of
            # its own of each context.
            expect(grown <= 6144 or is_sanitized(), f"{name}: {grown} KiB more than without the hook", str(hooked))


@test
def contexts_end():
    """Contexts, and green ones."""
    expect_no_trend("ten_thousand_contexts", "ten_thousand_green_contexts")


@test
def updates_and_advice_do_not_pile_up():
    """Graphs whose nodes name another place before each launch; advice and prefetches in small steps over a block."""
    expect_no_trend("ten_thousand_graph_updates", "ten_thousand_pieces_of_advice")


@test
def stream_ordered_memory_counts_on_the_streams_gpu():
    """Under pressure, too, memory that is allocated in the order of another GPU's stream is held to its budget."""
    same("allocations_on_a_stream_of_another_gpu", profile="two-gpu", evicts=False)


if __name__ == "__main__":
    sys.exit(main())
