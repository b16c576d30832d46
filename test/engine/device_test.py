"""Contexts, several GPUs, forks, older drivers and other platforms: device_test.py BUILD [NAME...] | --list"""

import pathlib
import sys
import tempfile

from engine_rig import (
    FETCHED,
    FETCHING_MODES,
    LARGE,
    MIB,
    SMALL,
    Skipped,
    built,
    expect,
    main,
    run,
    same,
    scenario,
    test,
)

PROFILES = ("two-gpu", "eight-gpu")
scenario("contexts", of="contexts_release_their_memory", pressed=None)
scenario("fork_before_cuda", evicts=False)
scenario("fork_after_cuda")
scenario("discarded_by_one_gpu_written_by_another", profile="two-gpu")
for kind in (
    "copy",
    "synchronous",
    "peer",
    "box",
    "batch",
    "host",
    "memset",
    "captured",
    "host_node",
    "changed_node",
    "memset_node",
):
    for unused in ({}, {"UNUSED": "1"}):
        scenario(
            f"copies_of_another_gpu_{kind}{'_unused' if unused else ''}",
            of="copies_of_another_gpu",
            profile="two-gpu",
            pressed=128 << 20,
            evicts=False,
            env={"COPIES": kind, **unused},
        )
scenario("peer_reads_stay_remote", profile="two-gpu", full=LARGE, pressed=None)


@test
def several_gpus():
    for profile, gpus in zip(PROFILES, (2, 8)):
        hooked = run("several_gpus", SMALL, profile=profile)
        expect(hooked.out == run("several_gpus", profile=profile).out, f"{profile}: results differ", str(hooked))
        logged = {line["gpu"] for line in hooked.lines()}
        expect(len(logged) == gpus, f"{profile}: an exit line for each GPU", hooked.err)


@test
def ring_of_peer_reads():
    for profile in PROFILES:
        same("ring_of_peer_reads", profile=profile)


@test
def launch_on_several_gpus():
    """A cooperative launch on several GPUs: each part's memory is fetched to its GPU before it runs.

    With `--prefetch off` the memory is faulted in."""
    fetched = {**FETCHED, "SCENARIO_FETCHED": "1"}
    for profile in PROFILES:
        same("launch_on_several_gpus", profile=profile, env=fetched, modes=FETCHING_MODES)
        same("launch_on_several_gpus", profile=profile)
    off = {**fetched, "SLUICE_PREFETCH": "off"}
    faulting = run("launch_on_several_gpus", SMALL, profile="two-gpu", env=off, status=None)
    expect(faulting.status != 0, "launches that fault fail the scenario", str(faulting))


@test
def no_concurrent_managed_access():
    """vGPU, WSL2, coherent platforms: memory is unmanaged, and the budget is a hard limit."""
    with tempfile.TemporaryDirectory() as folder:
        coherent = pathlib.Path(folder) / "coherent.profile"
        coherent.write_text("memory = 8Gi\nreserve = 64Mi\ncontext_bytes = 128Mi\nhost_page_tables = 1\n")
        for profile in ("no-cma", str(coherent)):
            hooked = run("out_of_memory_then_retry", SMALL, profile=profile, env={"SLUICE_LOG_LEVEL": "INFO"})
            expect("blocks 8\n" in hooked.err, "allocations beyond the budget are refused", hooked.err)
            begin = hooked.event("start")
            expect(begin["managed"] == 0 and "this GPU" in begin["reason"], "the reason is logged", hooked.err)
            expect(
                hooked.stats and all(g["managed_requested_bytes"] == 0 for g in hooked.gpus()),
                "no managed memory",
                str(hooked),
            )


@test
def older_drivers():
    for driver in ("simgpu-535", "simgpu-550"):
        if not built("lib", driver, "libcuda.so.1").exists():
            raise Skipped(f"{driver} is not built")
        # 535 does not describe kernels' parameters: accesses are unknown, and the budget is a hard limit.
        pressed = None if driver == "simgpu-535" else 256 * MIB
        for name in (
            "iterations_over_blocks",
            "ranges_freed_and_reused",
            "graphs_under_pressure",
            "access_that_no_parameter_shows",
        ):
            same(name, driver=driver, pressed=pressed)
    hooked = run("out_of_memory_then_retry", SMALL, driver="simgpu-535", env={"SLUICE_LOG_LEVEL": "INFO"})
    begin = hooked.event("start")
    expect("blocks 8\n" in hooked.err, "the budget is a hard limit", hooked.err)
    expect(begin["managed"] == 0 and "this driver" in begin["reason"], "the reason is logged", hooked.err)


if __name__ == "__main__":
    sys.exit(main())
