"""Containers that are parked and woken: a real agent, real processes on the simulated GPU.
park_test.py BUILD [NAME...] | --list"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from engine_node import Process
from engine_node import node as any_node
from engine_rig import MIB, environment, expect, main, scenarios_program, test

SCENARIO = "parked_by_a_test"
BLOCKS = 24  # of 64 MiB


def node(profile="card-8g"):
    # An idle process makes no call that would move virtual time on.
    return any_node(profile, SIMGPU_PACE="1")


def await_that(what, condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"not seen within {seconds} s: {what}")
        time.sleep(0.01)


def state(n, name):
    return n.status(name)["park"]["state"]


def budget(n, name):
    return [g["budget_bytes"] for g in n.status(name)["gpus"]]


def resident(n, name):
    return sum(g["resident_bytes"] for p in n.status(name)["processes"] for g in p["gpus"])


def expected(*commands, profile="card-8g", **variables):
    """The answers of a process that no one parks."""
    process = Process([scenarios_program(), SCENARIO], environment(None, profile, more=variables))
    try:
        return [process(command) for command in commands]
    finally:
        process.kill()


@test
def parked_memory_goes_to_others_and_returns():
    commands = (f"blocks {BLOCKS}", "steps 3", "digest", "steps 2", "digest")
    wanted = expected(*commands)
    with node() as n:
        n.allocate("one", units=50)
        n.allocate("two", units=50)
        one = n.process("one", SCENARIO)
        got = [one(command) for command in commands[:3]]
        answer = n.cli("park", "one")
        expect("one is parked: " in answer and "of unmanaged memory and" in answer, "the command says it", answer)
        expect(resident(n, "one") == 0, "nothing movable stays", str(resident(n, "one")))
        expect("one is parked by sluice park for" in n.cli("top", "--once"), "top shows it")
        expect("one is parked by sluice park for" in n.cli("status"), "status shows it")
        plain = n.status("one")["park"]["unmanaged_bytes"]
        expect(budget(n, "one") == [plain], "the budget is what stays", f"{budget(n, 'one')} {plain}")
        again = n.cli("park", "one", status=1)
        expect("one is parked already: by sluice park" in again, "a sentence", again)
        two = n.process("two", SCENARIO)
        expect(two("blocks 112") == "ok" and two("steps 3") == "ok", "another works")
        # All that the first one left; an idle container would keep a floor of a tenth of its half.
        card = json.loads(n.cli("status", "-o", "json"))["gpus"][0]
        lent = card["memory_bytes"] - card["reserve_bytes"] - plain
        await_that("the other has all of it", lambda: budget(n, "two")[0] >= lent - 64 * MIB)
        began = time.monotonic()
        got.append(one("steps 2"))
        expect(time.monotonic() - began < 20, "its launch wakes it")
        got.append(one("digest"))
        expect(got == wanted, "the values are the same", f"{got} {wanted}")
        expect(state(n, "one") == "", "it is awake")
        await_that("its working set is resident", lambda: resident(n, "one") >= BLOCKS * 64 * MIB)
        kinds = [line.split()[4] for line in n.cli("events").splitlines()[1:] if line.split()[3] == "one"]
        expect(kinds.index("parked") < kinds.index("woken"), "events", str(kinds))
        none = n.cli("wake", "one", status=1)
        expect("one is not parked" in none, "a sentence", none)
        for command in ("park", "wake"):
            unknown = n.cli(command, "three", status=2)
            expect("id: 'three' is unknown; accepted: one, two" in unknown, "a sentence", unknown)


@test
def woken_by_a_command_before_any_launch():
    with node() as n:
        n.allocate("one", units=50)
        one = n.process("one", SCENARIO)
        one(f"blocks {BLOCKS}")
        one("steps 3")
        n.cli("park", str(one.p.pid))  # a process names its container
        expect(resident(n, "one") == 0, "nothing movable stays")
        n.cli("wake", "on")
        await_that("the working set is back without a launch", lambda: resident(n, "one") >= BLOCKS * 64 * MIB)
        expect(n.status("one")["park"]["woken_by"] == "sluice wake", "it says by whom", str(n.status("one")["park"]))


@test
def values_survive_parks_at_random_times():
    rounds = 12
    commands = [f"blocks {BLOCKS}", *["steps 2", "copy", "capture", "end 2"] * rounds, "digest"]
    wanted = expected(*commands)
    with node() as n:
        n.allocate("one", units=20)  # 1.6 GiB: some of it is evicted in any case
        one = n.process("one", SCENARIO)
        over = threading.Event()
        parks = []

        def disturb():
            numbers = random.Random(7)
            while not over.is_set():
                word = numbers.choice(("park", "park", "wake"))
                done = subprocess.run(
                    n.command(word, "one", *(("--timeout", "0") if word == "park" else ())),
                    capture_output=True,
                    text=True,
                )
                parks.append(done.stderr + done.stdout)
                time.sleep(numbers.random() * 0.05)

        thread = threading.Thread(target=disturb)
        thread.start()
        numbers = random.Random(8)
        got = []
        for command in commands:
            got.append(one(command))
            time.sleep(numbers.random() * 0.1)
        over.set()
        thread.join()
        expect(got == wanted, "the values are the same", f"{got[-1]} {wanted[-1]}\n{''.join(parks[-10:])}")
        counts = n.status("one")["park"]
        expect(counts["parks"] > 5 and counts["wakes"] > 5, "it was parked and woken", str(counts))


@test
def queued_work_puts_the_parking_off():
    commands = (f"blocks {BLOCKS}", "steps 2", "queue 4", "open", "digest")
    wanted = expected(*commands)
    with node() as n:
        n.allocate("one", units=50)
        one = n.process("one", SCENARIO)
        got = [one(command) for command in commands[:3]]
        output = n.cli("park", "one", "--timeout", "3", status=1)
        expect(re.search(r"\bone\b.*\b[0-9.]+ [MG]iB", output), "the bytes that are in use are named", output)
        # No launch was planned so far, so any block may be in use.
        expect(resident(n, "one") > 0, "blocks in use stay")
        expect("park put off" in n.cli("events"), "an event")
        got.append(one("open"))
        await_that("it is parked when the work has ended", lambda: state(n, "one") == "parked")
        got.append(one("digest"))
        expect(got == wanted, "the values are the same", f"{got} {wanted}")


@test
def a_capture_that_is_open_does_not_hang():
    commands = (f"blocks {BLOCKS}", "steps 2", "capture", "end 3", "digest")
    wanted = expected(*commands)
    with node() as n:
        n.allocate("one", units=50)
        one = n.process("one", SCENARIO)
        got = [one(command) for command in commands[:3]]
        n.cli("park", "one")
        got += [one(command) for command in commands[3:]]
        expect(got == wanted, "the values are the same", f"{got} {wanted}")
        expect(state(n, "one") == "", "the graph's launch wakes it")


@test
def a_parked_process_may_allocate():
    with node() as n:
        n.allocate("one", units=50)
        one = n.process("one", SCENARIO, SLUICE_VMM="unmanaged")
        one(f"blocks {BLOCKS}")
        one("plain 256")
        n.cli("park", "one")
        expect(
            n.status("one")["park"]["unmanaged_bytes"] >= 256 * MIB,
            "plain bytes are named",
            str(n.status("one")["park"]),
        )
        began = time.monotonic()
        expect(one("plain 512") == "ok", "unmanaged memory")
        expect(time.monotonic() - began < 2, "without a long wait")
        await_that("it is awake", lambda: state(n, "one") == "")
        n.cli("park", "one")
        expect(one("blocks 1") == "ok", "managed memory, and a launch")
        await_that("it is awake", lambda: state(n, "one") == "")


@test
def kills_while_parked_and_while_parking():
    with node() as n:
        n.allocate("one", units=50)
        n.allocate("two", units=50)
        two = n.process("two", SCENARIO)
        two("blocks 72")  # more than its guarantee: a part is lent
        for moment in ("parked", "parking", "waking"):
            one = n.process("one", SCENARIO)
            one(f"blocks {BLOCKS}")
            one("steps 2")
            if moment == "parking":
                n.cli("park", "one", "--timeout", "0", status=None)
            else:
                n.cli("park", "one")
            if moment == "waking":
                n.cli("wake", "one")
            one.p.send_signal(signal.SIGKILL)
            one.p.wait()
            await_that("its container is empty", lambda: not n.status("one")["processes"])
            await_that("and awake", lambda: state(n, "one") == "")
            expect(two("steps 1") == "ok", "the other goes on")
        one = n.process("one", SCENARIO)
        expect(one("blocks 1") == "ok" and one("steps 1") == "ok", "the next process begins awake")


@test
def a_lost_agent_leaves_parked_programs_their_guarantees():
    commands = (f"blocks {BLOCKS}", "steps 2", "steps 2", "digest")
    wanted = expected(*commands)
    with node() as n:
        n.allocate("one", units=50)
        n.allocate("two", units=50)
        one, two = n.process("one", SCENARIO), n.process("two", SCENARIO)
        got = [one(command) for command in commands[:2]]
        two(f"blocks {BLOCKS}")
        n.cli("park", "one")
        n.cli("park", "two")
        n.kill_agent()
        time.sleep(0.3)
        began = time.monotonic()
        got.append(one("steps 2"))
        expect(time.monotonic() - began < 10, "its launches run", f"{time.monotonic() - began}")
        time.sleep(0.3)  # the page is written ten times a second
        within = int(one("resident"))
        expect(BLOCKS * 64 <= within <= 4096, "within its guarantee", f"{within} MiB")
        n.start()
        await_that("the new agent answers", lambda: "ALLOCATION" in n.cli("status", status=None))
        await_that("both return", lambda: len(n.status("two")["processes"]) == 1 == len(n.status("one")["processes"]))
        expect(state(n, "one") == "", "the one that worked is awake")
        await_that("the other is parked", lambda: state(n, "two") == "parked")
        expect(n.status("two")["park"]["reason"] == "the agent before its restart", "by whom")
        got.append(one("digest"))
        expect(got == wanted, "the values are the same", f"{got} {wanted}")
        expect(two("steps 1") == "ok" and state(n, "two") == "", "its launch wakes it")


@test
def a_stopped_agent_does_not_hold_launches():
    with node() as n:
        n.allocate("one", units=50)
        one = n.process("one", SCENARIO)
        one(f"blocks {BLOCKS}")
        n.cli("park", "one")
        os.kill(n.agent.pid, signal.SIGSTOP)
        began = time.monotonic()
        expect(one("steps 1") == "ok", "its launches run")
        took = time.monotonic() - began
        os.kill(n.agent.pid, signal.SIGCONT)
        expect(took < 25, "after the time in which an agent is taken for lost", f"{took} s")


@test
def all_processes_and_all_gpus_of_a_container():
    commands = (f"blocks {BLOCKS // 2}", "steps 2", "steps 1", "digest")
    wanted = expected(*commands, profile="two-gpu", SCENARIO_GPUS="2")
    with node("two-gpu") as n:
        n.allocate("one", units=50, gpus=2)
        first = n.process("one", SCENARIO, SCENARIO_GPUS="2")
        second = n.process("one", SCENARIO, SCENARIO_GPUS="2")
        got = [first(command) for command in commands[:2]]
        other = [second(command) for command in commands[:2]]
        n.cli("park", "one")
        expect(resident(n, "one") == 0, "nothing stays on either GPU")
        got += [first(command) for command in commands[2:]]
        await_that("the second process is woken, too", lambda: resident(n, "one") >= 2 * BLOCKS * 64 * MIB)
        other += [second(command) for command in commands[2:]]
        expect(got == wanted and other == wanted, "the values are the same", f"{got} {other} {wanted}")


@test
def parked_after_its_time():
    with node() as n:
        n.allocate("one", units=50, park_after="2s")
        one = n.process("one", SCENARIO)
        one(f"blocks {BLOCKS}")
        for _ in range(8):
            one("steps 1")
            time.sleep(0.5)
            expect(state(n, "one") == "", "not while it works")
        await_that("it is parked", lambda: state(n, "one") == "parked")
        expect(n.status("one")["park"]["reason"] == "park-after=2s", "by whom", str(n.status("one")["park"]))
        expect(one("steps 1") == "ok" and state(n, "one") == "", "it wakes")
        refused = n.cli("set", "one", "park-after=soon", status=2)
        expect("park-after: 'soon' is not accepted; accepted: off, or whole hours" in refused, "a sentence", refused)
        n.cli("set", "one", "park-after=off")
        time.sleep(3.5)
        expect(state(n, "one") == "", "the setting changes while it runs")


if __name__ == "__main__":
    sys.exit(main())
