"""The memory factor, and refusals beyond budget, limit and host memory: budget_test.py BUILD [NAME...] | --list"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from engine_rig import (
    GIB,
    LARGE,
    MIB,
    SMALL,
    Outcome,
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


@test
def factor_by_access_sources():
    """60 by parameters alone, 80 where an allocator reports, otherwise the setting.

    Library calls make it 100 (libraries_library_calls_test). It does not count while all live bytes fit the budget."""
    iterations = "many_iterations_over_blocks"
    expect(run(iterations, SMALL).figure("factor") == 60, "parameters alone")
    if not is_sanitized():
        reported = run("reported_frees_are_dropped", SMALL)
        expect(reported.figure("factor") == 80, "an allocator that reports")
    configured = run(iterations, SMALL, env={"SLUICE_MEMORY_FACTOR": "37"})
    expect(configured.figure("factor") == 37, "the setting")
    fits = run(iterations, 1088 * MIB)
    expect(fits.figure("live_bytes") == 0 or fits.figure("live_peak_bytes") == GIB, "1 GiB is live", fits.line())
    expect(
        fits.moved_bytes() == 0 and fits.figure("factor") == 60,
        "1 GiB fits 1,088 MiB, whatever the factor",
        str(fits),
    )


@test
def excess_of_an_idle_process_ends():
    """Bytes that launches left above the budget are evicted where no launch follows. Time passes as on a card."""
    name = "excess_of_an_idle_process_ends"
    hooked = run(name, SMALL, env={"SIMGPU_PACE": "1"})
    expect(hooked.out == run(name).out, "the same contents", str(hooked))
    above = int(re.search(r"^resident_mib=(\d+)$", hooked.err, re.M)[1]) * MIB
    expect(above > SMALL, "the launches left more than the budget", str(hooked))


def run_beside(phases):
    """Walks over 6 GiB at a budget of 4 GiB, beside an unhooked process that takes 4.8 GiB of the GPU's 8 GiB.

    The neighbour ends before the third phase."""
    with tempfile.TemporaryDirectory() as folder:
        gpu = {"SIMGPU_STATE": f"{folder}/card", "SIMGPU_PATIENCE_MS": "20000"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        hooked = subprocess.Popen(
            [str(built("test", "thrash_bench")), "walk", "6144", "400", str(phases)],
            env=environment(4 * GIB, more={**gpu, "SLUICE_MEMORY_FACTOR": "100"}),
            **pipes,
        )
        hooked.stdout.readline()
        tenant = [str(built("test", "simgpu_tenant")), "4.8", "1", "hold"]
        neighbour = subprocess.Popen(tenant, env=environment(None, more=gpu), **pipes)
        expect(neighbour.stdout.readline() == "ready\n", "the neighbour has its memory")
        for phase in range(1, phases):
            if phase == 2:
                neighbour.communicate()
            time.sleep(2.5)  # the engine measures the ceiling once a second
            hooked.stdin.write("\n")
            hooked.stdin.flush()
            hooked.stdout.readline()
        _, err = hooked.communicate()
        if neighbour.poll() is None:
            neighbour.communicate()
        expect(hooked.returncode == 0, "the program ends well", err)
        return Outcome(0, "", err)


@test
def factor_follows_free_memory():
    """A process without the hook takes unmanaged memory of the same GPU: the factor is lowered, and the reason logged.

    It rises again after that process has ended."""
    skip_if_sanitized("thrash_bench needs the shim")
    beside = run_beside(2)
    factor = beside.figure("factor")
    expect(60 <= factor <= 76, "about 2.9 of 4 GiB are free beside the neighbour", beside.line())
    expect(len(beside.logged("WARN", "factor", "unmanaged")) == 1, "the reason is logged", beside.err)
    after = run_beside(3)
    expect(after.figure("factor") > factor, "the factor rises again", after.line())


@test
def out_of_memory():
    unhooked = run("out_of_memory_then_retry")
    limit = {"SLUICE_MEMORY_LIMIT": str(1024 * MIB)}
    for budget in (SMALL, 1024 * MIB):
        hooked = run("out_of_memory_then_retry", budget, env=limit)
        expect(hooked.out == unhooked.out, "the retry computes the same", str(hooked))
        expect("blocks 16\n" in hooked.err, "allocations beyond the limit are refused", hooked.err)
        refusals = hooked.logged("WARN", "64.00 MiB", "1.00 GiB", "memory-limit", "budget")
        expect(len(refusals) == 1, "the refusal is logged once, with the sizes", hooked.err)


@test
def host_memory_bounds_live_bytes():
    """Evicted bytes use host memory of the container's cgroup.

    Beyond its limit allocations are refused, and the OOM killer has no reason to act."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise Skipped("needs root for a mount namespace")
    with tempfile.TemporaryDirectory() as folder:
        v2 = pathlib.Path(folder)
        (v2 / "memory.max").write_text(f"{1024 * MIB}\n")
        # 744 MiB that cannot be reclaimed, and a dataset in the page cache.
        (v2 / "memory.current").write_text(f"{844 * MIB}\n")
        (v2 / "memory.stat").write_text(
            f"anon {744 * MIB}\nfile {100 * MIB}\ninactive_file {60 * MIB}\nactive_file {40 * MIB}\n"
        )
        # The same as cgroup v1 names it.
        v1 = v2 / "memory"
        v1.mkdir()
        (v1 / "memory.limit_in_bytes").write_text(f"{1024 * MIB}\n")
        (v1 / "memory.usage_in_bytes").write_text(f"{844 * MIB}\n")
        (v1 / "memory.stat").write_text(
            f"inactive_file 0\ntotal_inactive_file {60 * MIB}\ntotal_active_file {40 * MIB}\n"
        )
        inside = ["unshare", "-m", "sh", "-c", f'mount --bind {v2} /sys/fs/cgroup && exec "$@"', "sh"]
        hooked = run("allocation_until_refused", SMALL, command=inside)
    expect(re.search("blocks 1[23]\n", hooked.err), "512 MiB of budget and 280 MiB of host memory", hooked.err)
    refusals = hooked.logged("WARN", " MiB")
    expect(
        len(refusals) == 1 and "memory-limit" not in refusals[0],
        "the refusal is logged, and its reason is not the limit",
        hooked.err,
    )


@test
def vmm():
    hooked = run("vmm_memory_counts", SMALL, env={"SLUICE_VMM": "unmanaged"})
    expect(len(hooked.logged("WARN", "cuMemCreate")) == 1, "one WARN names VMM", hooked.err)
    expect(run("vmm_memory_counts").out == hooked.out, "results differ", str(hooked))


@test
def ipc():
    codes = lambda outcome: re.search(r"codes (.*)", outcome.err)[1]
    unhooked, managed = run("ipc_export"), run("ipc_export", LARGE)
    expect(codes(managed) != "0 0", "tracked memory is not exported", managed.err)
    expect(
        len(managed.logged("WARN", "cuIpcGetMemHandle", "SLUICE_UNMANAGED=1")) == 1,
        "one WARN names the setting that allows it",
        managed.err,
    )
    allowed = run("ipc_export", LARGE, env={"SLUICE_UNMANAGED": "1"})
    expect(codes(allowed) == codes(unhooked), "with SLUICE_UNMANAGED=1 as without the hook", allowed.err)
    hard = run("out_of_memory_then_retry", SMALL, env={"SLUICE_UNMANAGED": "1"})
    expect("blocks 8\n" in hard.err, "the budget is a hard limit", hard.err)


if __name__ == "__main__":
    sys.exit(main())
