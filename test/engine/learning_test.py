"""Blocks cut out of one allocation, whose ranges the engine learns: learning_test.py BUILD [NAME...] | --list"""

import re
import sys
import tempfile

from engine_rig import ALL_MODES, DEBUG, FETCHING_MODES, MIB, SMALL, expect, explained, main, run, same, scenario, test

scenario("a_pool_with_loaded_blocks", of="pool_with_loaded_blocks", env={"SLUICE_HOST_ACCESS": "0"})
scenario("threads_in_a_pool", modes=ALL_MODES)
scenario("streams_in_a_pool", modes=FETCHING_MODES)
scenario("a_pool_behind_a_gate", of="pool_launches_behind_a_gate", modes=ALL_MODES)


def settled(outcome):
    """MiB faulted in while the scenario's last phase ran, and MiB resident at its end."""
    found = re.search(r"^pool phase=settled fault_mib=(\d+) resident_mib=(\d+)$", outcome.err, re.M)
    expect(found, "the scenario prints its last phase", outcome.err)
    return int(found[1]), int(found[2])


@test
def blocks_of_a_pool():
    """Launches name an allocation whole and use a part: the part is learned and fetched, and the budget is held.

    Not with the switch off, nor where the driver records no faults, which is logged once."""
    debug = {**DEBUG, "SLUICE_HOST_ACCESS": "0"}
    same("pool_blocks_are_learned", env=debug, modes=ALL_MODES)
    ends = {}
    for case, env in (
        ("learned", {}),
        ("off", {"SLUICE_LEARN": "0"}),
        ("refused", {"SIMGPU_UVM_TOOLS": "counters"}),
        ("no device", {"SIMGPU_UVM_TOOLS": "0"}),
        ("prefetch off", {"SLUICE_PREFETCH": "off"}),
        ("launch", {"SLUICE_PREFETCH": "launch"}),
    ):
        end = ends[case] = run("pool_blocks_are_learned", SMALL, env={**debug, **env})
        expect(end.out == ends["learned"].out, f"{case}: results differ", str(end))
        fault_mib, resident_mib = settled(end)
        if case in ("learned", "launch"):
            expect(fault_mib == 0 and resident_mib <= 512, f"{case}: all is fetched within the budget", end.err)
        else:
            expect(fault_mib > 1024, f"{case}: all is faulted in", end.err)
            expect(not end.events("watched"), f"{case}: nothing is watched", end.err)
    learned, refused = ends["learned"], ends["refused"]
    ranges = [
        event["bytes"]
        for event in learned.events("learned_range")
        if (event["word"], event["block_bytes"], event["offset_bytes"]) == (0, 1536 * MIB, 0)
    ]
    expect(ranges == [64 * MIB], "the learned range is logged at DEBUG, once", learned.err)
    sums = learned.event("learned_ranges")
    expect((sums["kinds"], sums["given_up"]) == (1, 0), "one kind is learned", learned.err)
    expect(sums["watched"] <= 16 and sums["narrowed"] > 100, "few launches are watched, then none", learned.err)
    refusals = [event for event in refused.events("fault_records") if event["use"] == "pointer_ranges"]
    expect(
        len(refusals) == 1 and refusals[0]["state"] == "refused" and "status" in refusals[0]["reason"],
        "a refusal is logged once with its reason",
        refused.err,
    )
    source = refused.figure("fault_bytes_source")
    expect(source == "counted", "faults are counted where they are not recorded", refused.line())


@test
def a_pool_used_otherwise():
    """Kernels begin to use more than the learned range: faults show it, and the launches are watched again."""

    def widened(_, tight):
        outcomes = [event["outcome"] for event in tight.events("watched")]
        expect("uses_more" in outcomes, "the wider use is noticed", tight.err)
        fault_mib, resident_mib = settled(tight)
        # Once nothing moves any more, four resident chunks are sampled, and are faulted in.
        expect(fault_mib <= 8 and resident_mib <= 512, "later nothing is faulted in, and the budget is held", tight.err)

    for remote in ("0", "1"):
        same("pool_blocks_used_more_widely", env={**DEBUG, "SLUICE_HOST_ACCESS": remote}, check=widened)


@test
def rows_of_a_pool():
    """Rows in random order: learning is given up after a launch or two, and nothing is fetched for these launches."""

    def given_up(_, tight):
        watched = [event for event in tight.events("watched") if event["kernel"] == "named"]
        sums = tight.event("learned_ranges")
        expect(
            sums["given_up"] == 1 and sums["watched"] == len(watched) <= 24, "learning is given up for good", tight.err
        )

    same("random_rows_are_given_up", env=DEBUG, check=given_up)


@test
def learned_ranges_are_explained():
    """`sluice replay --explain` reads the engine's recording, which marks learned ranges."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = f"{folder}/recorded.sltrace"
        run("pool_blocks_are_learned", SMALL, env={"SLUICE_RECORD": recorded})
        text = explained(recorded, recorded)
        lines = re.findall(r"^#\d+ named: (.*)$", text, re.M)
        expect(
            lines and lines[0] == "parameters 1536.0 MiB" and lines[-1] == "learned 64.0 MiB",
            "the first launch predicts the whole allocation, the last one a part",
            text[-2000:],
        )


@test
def matrices_by_a_table():
    """Memory that no launch names is held to the budget, too, and the hot part of it stays."""
    unhooked = run("matrices_by_a_table")
    for env in ({}, {"SLUICE_LEARN": "0"}, {"SLUICE_PREFETCH": "off"}):
        hooked = run("matrices_by_a_table", SMALL, env=env)
        expect(hooked.out == unhooked.out, f"values differ with {env}", str(hooked))
    hooked = run("matrices_by_a_table", SMALL, env={"SLUICE_LOG_LEVEL": "INFO"})
    uses = [event["use"] for event in hooked.events("fault_records")]
    expect("unnamed_memory" in uses, "an INFO line says it", hooked.err[-2000:])


if __name__ == "__main__":
    sys.exit(main())
