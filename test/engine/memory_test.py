"""Allocation, reuse and copies, and unmanaged memory: memory_test.py BUILD [NAME...] | --list"""

import sys

from engine_rig import ALL_MODES, GIB, LARGE, MIB, SMALL, expect, main, run, same, scenario, skip_if_sanitized, test

scenario("blocks", of="iterations_over_blocks", modes=ALL_MODES)
scenario("churn", of="ranges_freed_and_reused", pressed=128 * MIB, modes=ALL_MODES)
scenario("async_churn", of="stream_ordered_allocation", modes=ALL_MODES)
scenario("copies", of="copies_survive_eviction")
scenario("pitched", of="pitched_allocation")
scenario("app_managed", of="managed_memory_of_the_application")
scenario("small_blocks", of="small_allocations_stay_unmanaged")
scenario("pool_memory_counts", pressed=None)
scenario("graph_memory", of="memory_of_graphs_counts")
scenario("graph_memory_counts_on_its_gpu", profile="two-gpu", evicts=False)
scenario("memory_that_graphs_leave_counts", evicts=False)
scenario("refused_ends_of_pools_change_nothing", evicts=False)
scenario("unmanaged_memory_makes_room", env={"SLUICE_VMM": "unmanaged"})
scenario("context_limits", of="context_limits_count", evicts=False)
scenario("ends_with_its_context", of="unmanaged_memory_ends_with_its_context", evicts=False)
scenario("prefetched_by_the_program", of="prefetches_of_the_program_keep_the_budget")
scenario("discards_of_the_program_under_pressure", pressed=512 * MIB)
scenario("calls_that_need_managed_memory", pressed=256 * MIB, evicts=False)
scenario("pools_know_their_memory", pressed=256 * MIB, evicts=False)
scenario("calls_past_an_allocation", pressed=256 * MIB, evicts=False)
scenario("arrays_take_the_bytes_of_their_format", pressed=96 * MIB, evicts=False)
scenario("copies_past_their_block", pressed=96 * MIB, evicts=False)
scenario("reserved_addresses_hold_nothing", pressed=96 * MIB, evicts=False)
scenario("pools_by_any_handle_count", pressed=256 * MIB, evicts=False)
scenario("pools_have_a_largest_size", pressed=256 * MIB, evicts=False)
scenario("pool_memory_is_free_when_its_free_is_queued", evicts=False)
scenario("pool_memory_stays_beside_another_gpu", profile="two-gpu", pressed=None)
scenario("advice_of_pool_memory_ends_without_a_lock", pressed=None)
scenario("pool_memory_takes_no_stream_values", pressed=96 * MIB, evicts=False)
scenario("pool_marks_are_reset_alone", pressed=96 * MIB, evicts=False)
scenario("pool_memory_is_freed_without_a_wait", pressed=256 * MIB)
scenario("calls_after_a_lasting_error", pressed=96 * MIB, evicts=False)
scenario("frees_name_their_stream", pressed=96 * MIB, evicts=False)
scenario("locations_of_a_batch_are_in_order", pressed=96 * MIB, evicts=False)
scenario("batch_copies_to_discarded_memory", pressed=32 * MIB)
scenario("batch_copies_past_their_block", pressed=96 * MIB, evicts=False)
scenario("managed_memory_for_the_host_first", pressed=64 * MIB)
scenario("managed_pools_are_oversubscribed", pressed=64 * MIB)
scenario("memory_of_another_process", pressed=64 * MIB)
scenario(
    "unmanaged_memory_of_another_process", of="memory_of_another_process", pressed=None, env={"SLUICE_UNMANAGED": "1"}
)
scenario("external_memory_and_semaphores", pressed=48 * MIB)
scenario("decompression", pressed=48 * MIB)
scenario("freed_pointers_are_unknown", pressed=256 * MIB, evicts=False)
scenario("attributes_of_each_memory", pressed=256 * MIB, evicts=False)
scenario("sync_memops_are_remembered", pressed=256 * MIB, evicts=False)
scenario("ranges_are_as_the_program_said", pressed=256 * MIB)
scenario("ranges_beside_a_peer", profile="two-gpu", evicts=False)
scenario("arrays_and_memory", pressed=256 * MIB)
scenario("host_sides_in_managed_memory", pressed=256 * MIB)
scenario("textures_and_surfaces", pressed=256 * MIB)
# Words of small blocks are device memory even in a small budget.
scenario("stream_values_in_device_memory", pressed=96 * MIB, evicts=False)
scenario("freed_without_a_context", pressed=64 * MIB)


@test
def allocations_answer_as_the_driver():
    capture = {"SIMGPU_CAPTURE": "error"}
    runs = [run("allocations_answer_as_the_driver", budget, env=capture) for budget in (None, LARGE, SMALL)]
    unhooked, *hooked = runs
    expect("900 900\n" in unhooked.out, "the driver refuses", str(unhooked))
    for outcome in hooked:
        expect(outcome.out == unhooked.out, "results differ", f"{unhooked}\n{outcome}")


@test
def async_reuse():
    run("stream_ordered_reuse", LARGE)
    run("stream_ordered_reuse", SMALL)


@test
def pool_keeps_memory():
    """1 GiB a step: without a threshold, twice up to 512 MiB, twice all; trimmed, again, lowered; a pool destroyed."""
    for budget, whole in ((LARGE, 1024), (768 * MIB, 768)):
        outcome = run("pool_keeps_memory", budget)
        found = [int(line.split()[1]) for line in outcome.err.splitlines() if line.endswith(" MiB")]
        kept = (0, 512, 512, whole, whole, 0, whole, 0, whole, 0)
        # Live bytes and a quarter and 256 MiB may stay at any time.
        fits = [k <= f <= max(256, min(k + k // 4 + 256, budget // MIB)) + 2 for f, k in zip(found, kept)]
        expect(len(found) == len(kept) and all(fits), f"requested {found}, kept {kept}", str(outcome))


@test
def kept_memory_makes_room():
    fits = run("kept_memory_makes_room", 2 * GIB)
    expect("residency is managed" not in fits.err and fits.figure("evicted_bytes") == 0, "it fits", fits.err)
    run("kept_memory_makes_room", 4 * GIB, env={"SLUICE_MANAGED_LIMIT": str(2 * GIB)})


@test
def view():
    skip_if_sanitized("the shim answers NVML's functions")
    same("sizes_show_the_fraction", pressed=256 * MIB, evicts=False)


@test
def many_blocks():
    skip_if_sanitized("a sanitizer's own memory would be measured")
    print(run("bookkeeping_of_many_blocks", LARGE).err)


if __name__ == "__main__":
    sys.exit(main())
