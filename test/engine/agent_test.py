"""Agents that misbehave, and budgets that change: agent_test.py BUILD [NAME...] | --list"""

import contextlib
import os
import random
import struct
import sys
import tempfile
import time

from engine_rig import LARGE, MIB, SMALL, expect, gpu_uuid, main, run, start, test
from played_agent import (
    EVICTED_BYTES,
    FETCHED_BYTES,
    LAUNCHES,
    LINK_WAIT_NS,
    LIVE_BYTES,
    TOKEN_REQUEST,
    TOUCHED_BYTES,
    UNMANAGED_BYTES,
    Agent,
    budget_frame,
    counter,
    grant_frame,
    token_of,
    welcome,
)


@test
def agents_that_misbehave():
    def garbage(peer):
        numbers = random.Random(5)
        for i in range(10_000):
            peer.send(
                numbers.randbytes(numbers.randrange(1, 400))
                if i % 2
                else struct.pack("<I", 0x53) * numbers.randrange(1, 90)
            )

    def silent(peer):
        time.sleep(30)

    def closed(peer):
        peer.close()

    expected = run("iterations_over_blocks").out
    with tempfile.TemporaryDirectory() as folder:
        for talk in (garbage, silent, closed):
            path = f"{folder}/{talk.__name__}.sock"
            agent = Agent(path, talk)
            begin = time.monotonic()
            hooked = run("iterations_over_blocks", SMALL, env={"SLUICE_SOCKET": path})
            expect(hooked.out == expected, f"{talk.__name__}: results differ", str(hooked))
            expect(hooked.err.count("ERROR") <= 1, f"{talk.__name__}: at most one ERROR", hooked.err)
            expect(time.monotonic() - begin < 60, f"{talk.__name__}: nothing hangs", hooked.err)
            agent.listener.close()
        hooked = run("iterations_over_blocks", SMALL, env={"SLUICE_SOCKET": f"{folder}/nowhere/agent.sock"})
        expect(hooked.out == expected, "no agent: the environment's budget holds", str(hooked))


@test
def a_share_that_others_still_hold_is_waited_for():
    """The guarantee was lent, and its host memory given away: a new process waits for both and is not refused."""
    share, wanted_bytes = 512 * MIB, []
    uuid = gpu_uuid()

    def talk(peer, is_returned):
        page = welcome(peer)
        peer.send(budget_frame(uuid, 64 * MIB, share, 0, 5))
        began = time.monotonic()
        wanted = 0
        while wanted < 64 * MIB and time.monotonic() < began + 20:
            wanted = counter(page, LIVE_BYTES)  # the bytes that the process waits for are included
            time.sleep(0.01)
        wanted_bytes.append(wanted)
        time.sleep(0.3)
        if is_returned:
            peer.send(budget_frame(uuid, share, share, share, 6))
        peer.recv(256)

    for name in ("vmm_memory_counts", "share_that_arrives_late"):
        with tempfile.TemporaryDirectory() as folder:
            Agent(f"{folder}/agent.sock", lambda peer: talk(peer, True))
            env = {"SLUICE_SOCKET": f"{folder}/agent.sock", "SLUICE_VMM": "unmanaged"}
            run(name, share, env=env)  # a refusal ends it with another status
            expect(wanted_bytes[-1] >= 64 * MIB, f"{name}: the page shows the awaited bytes", str(wanted_bytes))
    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", lambda peer: talk(peer, False))
        begin = time.monotonic()
        env = {"SLUICE_SOCKET": f"{folder}/agent.sock", "SCENARIO_REFUSED": "1"}
        hooked = run("share_that_arrives_late", share, env=env)
        expect(
            2 < time.monotonic() - begin < 25,
            "a share that is not returned: one allocation is refused after the wait, the next at once",
            str(hooked),
        )
        expect(len(hooked.logged("WARN", " MiB")) == 1, "the refusal is logged", hooked.err)


@test
def a_launch_waits_for_a_share_that_is_being_raised():
    """Evictions meanwhile would take the link from the processes that make room, and be fetched again soon."""
    # The engine looks for the next raise within 30 ms, and compilers may keep all CPUs busy.
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    share = 256 * MIB
    uuid = gpu_uuid()

    def talk(peer):
        page = welcome(peer)
        budget, generation, began, seen = share // 2, 5, time.monotonic(), None
        while time.monotonic() < began + 20 and (seen is None or time.monotonic() < seen + 0.4):
            peer.send(budget_frame(uuid, budget, share, share, generation, 100))
            budget, generation = budget + 1024, generation + 1
            if seen is None and counter(page, LAUNCHES) >= 2:
                seen = time.monotonic()
            time.sleep(0.005)
        peer.send(budget_frame(uuid, share, share, share, generation, 100))
        peer.recv(256)

    evicted = []
    while len(evicted) < 10 and 0 not in evicted:  # on a busy machine a raise may come after the engine's wait
        with tempfile.TemporaryDirectory() as folder:
            Agent(f"{folder}/agent.sock", talk)
            env = {"SLUICE_SOCKET": f"{folder}/agent.sock"}
            evicted.append(run("budget_raised_between_launches", share, env=env).figure("evicted_bytes"))
    os.setpriority(os.PRIO_PROCESS, 0, before)
    expect(0 in evicted, "nothing is evicted", str(evicted))


@test
def launches_that_miss_bytes_wait_for_their_share_of_the_link():
    """By real time: the simulated GPU's own clock has no part in it."""
    uuid, rate = gpu_uuid(), 2 << 30
    expected = run("iterations_over_blocks").out

    def measure(link):
        pages = []

        def talk(peer):
            page = welcome(peer, minor=1)
            pages.append(page)
            peer.send(budget_frame(uuid, SMALL, SMALL, 1 << 40, 5, granted=1 << 40, link=link))
            while peer.recv(256):
                pass

        with tempfile.TemporaryDirectory() as folder:
            Agent(f"{folder}/agent.sock", talk)
            hooked = run("iterations_over_blocks", SMALL, env={"SLUICE_SOCKET": f"{folder}/agent.sock"})
        expect(hooked.out == expected, "results differ", str(hooked))
        moved = counter(pages[0], FETCHED_BYTES) + counter(pages[0], EVICTED_BYTES)
        return moved, counter(pages[0], LINK_WAIT_NS) / 1e9

    moved, waited = measure(0)
    expect(moved > 2 << 30, "there is something to meter", str(moved))
    expect(waited == 0, "without a rate nothing waits", str(waited))
    moved, waited = measure(rate)
    due = moved / rate  # a busy machine makes single waits longer
    expect(waited >= 0.5 * due, "the waits add up to the bytes, less the last launch's", f"{waited} of {due} s")


@test
def working_sets_of_the_last_minute():
    """Four blocks are used for some seconds, then one alone for more than a minute: where all fits, over the budget, by
    graphs; and a program that does nothing any more. All four run beside one another, by real time.
    """
    uuid, block, at_first_s, after_s = gpu_uuid(), 256 * MIB, 6, 72
    runs = {  # budget; how one block is used; bytes touched in the end
        "fits": (LARGE, "launches", block),
        "over": (SMALL, "launches", block),
        "graphs": (LARGE, "graphs", block),
        "idle": (LARGE, "nothing", 0),
    }
    expected = run("one_of_four_blocks_is_used").out
    with tempfile.TemporaryDirectory() as folder:
        pages, processes = {}, {}
        for name, (budget, how, _) in runs.items():

            def talk(peer, name=name, budget=budget):
                pages[name] = welcome(peer, minor=1)
                peer.send(budget_frame(uuid, budget, budget, 1 << 40, 5, granted=1 << 40))
                while peer.recv(256):
                    pass

            Agent(f"{folder}/{name}.sock", talk)
            env = {"SLUICE_SOCKET": f"{folder}/{name}.sock", "SCENARIO_SECONDS": str(after_s + 20), "SCENARIO_USE": how}
            processes[name] = start("one_of_four_blocks_is_used", budget, env=env)
        begin = time.monotonic()

        def touched(name):
            return counter(pages[name], TOUCHED_BYTES) - counter(pages[name], UNMANAGED_BYTES)

        time.sleep(at_first_s)
        for name in runs:
            expect(abs(touched(name) - 4 * block) <= 0.1 * 4 * block, f"{name}: four blocks at first", touched(name))
        time.sleep(begin + after_s - time.monotonic())
        for name, (_, _, left) in runs.items():
            expect(abs(touched(name) - left) <= 0.1 * left, f"{name}: one block in the end", touched(name))
        for name, process in processes.items():
            out, err = process.communicate(timeout=120)
            expect(process.returncode == 0 and out == expected, f"{name}: results differ", out + err)


@test
def a_kernel_on_several_gpus_awaits_the_time_slice_of_each():
    """Both GPUs' tokens are requested for it, and with none granted nothing runs for a while."""
    first = gpu_uuid()
    uuids = [first, first[:-1] + b"1"]
    asked = []

    def talk(peer):
        welcome(peer)
        for generation, uuid in enumerate(uuids, 5):
            peer.send(budget_frame(uuid, 2 << 30, 2 << 30, 1 << 34, generation, tokens=1))
        number = 0
        while message := peer.recv(256):
            if struct.unpack_from("<H", message, 6)[0] != TOKEN_REQUEST:
                continue
            number += 1
            asked.append(token_of(message))
            peer.send(grant_frame(token_of(message), number, 2_000_000, 2_000_000_000))

    expected = run("parts_await_their_time_slices", profile="two-gpu").out
    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", talk)
        env = {"SLUICE_SOCKET": f"{folder}/agent.sock"}
        hooked = run("parts_await_their_time_slices", 2 << 30, profile="two-gpu", env=env)
    expect(hooked.out == expected, "results differ", str(hooked))
    expect(all(asked.count(uuid) > 1 for uuid in uuids), "both GPUs' tokens are requested again and again", str(asked))


if __name__ == "__main__":
    sys.exit(main())
