"""Memory that is overwritten whole, or freed, before its next use: overwrite_test.py BUILD [NAME...] | --list"""

import sys

from engine_rig import FETCHED, FETCHING_MODES, MIB, TESTS, is_sanitized, main, same, scenario, test

scenario("overwritten_where_it_is_read", of="overwritten_after_remote_reads", modes=FETCHING_MODES)


@test
def overwritten_by_copies():
    """A range that a copy or memset overwrites whole is not fetched.

    It is fetched where the switch is off, or the driver has no discard."""
    same("overwritten_by_copies", env=FETCHED, modes=FETCHING_MODES)
    same("overwritten_by_copies", env={**FETCHED, "SLUICE_OVERWRITES": "0"}, modes=("launch",))
    no_discard = {**FETCHED, "SCENARIO_NO_DISCARD": "1"}
    if is_sanitized():
        print("SKIP a driver without discard: the simulated driver is part of a sanitizer's program, and is the newest")
    else:
        same("overwritten_by_copies", driver="simgpu-550", env=no_discard, modes=("launch",))
    same("overwritten_by_copies", env={**no_discard, "SLUICE_OVERWRITES": "0"}, modes=("off",))


def with_and_without_fetching(name, of=None, budgets=(512,)):
    def both():
        for env in ({}, FETCHED):
            for mib in budgets:
                same(of or name, pressed=mib * MIB, env=env, modes=FETCHING_MODES)

    TESTS[name] = both


with_and_without_fetching("overwritten_on_default_streams")
with_and_without_fetching("overwritten_during_eviction")
with_and_without_fetching("overwritten_at_every_moment", of="overwritten_at_any_point_of_eviction")
with_and_without_fetching("overwritten_in_a_capture")
with_and_without_fetching("freed_and_written_again", budgets=(480, 512, 600))
with_and_without_fetching("freed_and_reused_by_another_stream")


@test
def freed_while_the_gpu_is_behind():
    same("freed_while_the_gpu_is_behind", env=FETCHED, evicts=False, modes=FETCHING_MODES)
    same("freed_while_the_gpu_is_behind", env={**FETCHED, "SLUICE_DISCARD": "0"}, modes=FETCHING_MODES)


if __name__ == "__main__":
    sys.exit(main())
