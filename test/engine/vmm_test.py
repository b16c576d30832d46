"""VMM memory in managed form: vmm_test.py BUILD [NAME...] | --list"""

import sys

from engine_rig import ALL_MODES, GIB, LARGE, MIB, SMALL, expect, main, run, scenario, test

scenario("vmm_segment", of="vmm_expandable_segment", modes=ALL_MODES)
scenario("vmm_xla", of="vmm_created_before_reserved", modes=ALL_MODES)
scenario("vmm_sleep_and_wake", pressed=256 * MIB, modes=ALL_MODES)
scenario("vmm_contents_move_with_their_handle")
scenario("vmm_contents_move_beside_a_copy_that_the_gpu_waits_for", evicts=False)
scenario("vmm_contents_move_beside_a_waiting_stream", evicts=False)
scenario("vmm_memory_outlives_a_reset", evicts=False)
scenario("vmm_bound_to_a_multicast_object", evicts=False)
scenario("vmm_contents_written_by_a_table_move", pressed=256 * MIB)
scenario("vmm_mapped_twice_beside_ended_threads", pressed=256 * MIB, evicts=False)
scenario("reservations_beside_releases", pressed=None)
scenario("vmm_references", pressed=256 * MIB, evicts=False)
scenario("vmm_handles_that_ended", pressed=256 * MIB, evicts=False)
scenario("vmm_attributes", evicts=False)
scenario("vmm_outlives_its_context", pressed=96 * MIB, evicts=False)
scenario("vmm_churn", pressed=64 * MIB, evicts=False)
scenario("vmm_captured", pressed=300 * MIB, modes=ALL_MODES)
scenario("vmm_becomes_unmanaged", pressed=96 * MIB, evicts=False)
scenario("vmm_of_two_gpus", profile="two-gpu", pressed=96 * MIB, evicts=False)
scenario("vmm_reserved_at_an_address", pressed=96 * MIB, evicts=False)


@test
def vmm_refusals():
    unhooked = run("vmm_refusals")
    hooked = run("vmm_refusals", LARGE)
    expect(hooked.out == unhooked.out, "results differ", f"{unhooked}\n{hooked}")
    refused = hooked.logged("WARN", "VMM", "SLUICE_VMM=unmanaged")
    expect(len(refused) == 3 == len(set(refused)), "each of the three refusals is logged once", hooked.err)
    unmanaged = run("vmm_refusals", LARGE, env={"SLUICE_VMM": "unmanaged"})
    expect(unmanaged.out == unhooked.out, "results differ with SLUICE_VMM=unmanaged", str(unmanaged))


@test
def vmm_switched_off():
    """Each of these is the driver's own memory, which the budget bounds; the reason names the variable."""
    for reason, env in {
        "SLUICE_VMM=unmanaged": {"SLUICE_VMM": "unmanaged"},
        "SLUICE_MANAGED_LIMIT": {"SLUICE_MANAGED_LIMIT": "1Gi"},
    }.items():
        hooked = run("vmm_expandable_segment", 2 * GIB, env=env)
        expect(hooked.out == run("vmm_expandable_segment").out, f"{reason}: results differ", str(hooked))
        expect(len(hooked.logged("WARN", "cuMemCreate", reason)) == 1, f"one line says: {reason}", hooked.err)
        expect(hooked.moved_bytes() == 0, f"{reason}: nothing moves", str(hooked))


@test
def vmm_limit():
    hooked = run("vmm_memory_ends_at_the_limit", SMALL, env={"SLUICE_MEMORY_LIMIT": "1Gi"})
    expect("handles 16\n" in hooked.err, "1 GiB of handles", hooked.err)
    hooked = run("vmm_memory_ends_at_the_limit", SMALL, env={"SLUICE_VMM": "unmanaged"})
    expect("handles 8\n" in hooked.err, "the budget of 512 MiB", hooked.err)


if __name__ == "__main__":
    sys.exit(main())
