"""What a program does to the process that the hook lives in: process_test.py BUILD [NAME...] | --list. As engine_test.py, whose means it uses."""

import os
import pathlib
import re
import sys
import tempfile

import engine_test as engine
from engine_test import SMALL, Agent, Skipped, budget_frame, expect, run, same, scenario, test, welcome

engine.TESTS.clear()
scenario("sizes_that_nobody_has", evicts=False)
scenario("copies_of_sizes_that_nobody_has")
scenario("storm_at_the_budget", evicts=False)
scenario("reset_of_a_context_that_is_held", evicts=False)
scenario("managed_after_a_reset")


@test
def contexts_on_cards_in_turn():
    same("contexts_on_cards_in_turn", profile="two-gpu", evicts=False)


@test
def stderr_without_a_reader():
    """A pipe whose reader has gone ends who writes: the program writes nothing, and lives."""
    for budget in (None, SMALL):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            run("streams_come_and_go", budget, stderr=writer)
        finally:
            os.close(writer)


@test
def stderr_that_nobody_reads():
    """A pipe that is full: who does not write does not wait."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        for bytes in (4096, 1):
            try:
                while True:
                    os.write(writer, b"x" * bytes)
            except BlockingIOError:
                pass
        os.set_blocking(writer, True)
        for budget in (None, SMALL):
            run("streams_come_and_go", budget, stderr=writer, seconds=60)
    finally:
        os.close(reader)
        os.close(writer)


@test
def stderr_that_is_something_else():
    """A program's own file under the number of stderr holds what the program wrote."""
    with tempfile.TemporaryDirectory() as folder:
        mine = pathlib.Path(folder) / "mine"
        run("stderr_is_something_else", SMALL, env={"SCENARIO_FILE": str(mine), "SLUICE_LOG_LEVEL": "DEBUG"})
        expect(mine.read_bytes() == b"", "nothing of ours is in it", mine.read_text())


@test
def exit_in_a_handler():
    """exit() from a signal's handler, wherever the launching thread is: the process ends."""
    if engine.sanitized:
        raise Skipped("what is not safe in a handler is what it is about")
    for us in (20000, 50000, 100000, 200000) * 3:
        # The simulated card's own figures are left out: it writes them with malloc, whose lock the thread may hold.
        hooked = run("exit_in_a_handler", SMALL, env={"SCENARIO_US": str(us), "SIMGPU_STATS": ""}, seconds=60)
        expect(hooked.out == "done exit_in_a_handler\n", "it has begun", str(hooked))


@test
def forked_child_asks_nvml():
    """What a forked child asks is answered from what held at the fork, whoever held which lock then; it is no user of the card."""
    if engine.sanitized:
        raise Skipped("NVML's names are the shim's to answer")
    hellos, uuid = [], re.search(r"GPU-[0-9a-f-]+", run("vmm", SMALL).err)[0].encode()

    def talk(peer):
        hellos.append(welcome(peer))
        peer.send(budget_frame(uuid, SMALL, SMALL, 1 << 40, 5))
        while peer.recv(256):
            pass

    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", talk)
        # The card's own lock is between processes then: a child waits for its parent's thread, not for a copy of its lock.
        env = {"SLUICE_SOCKET": f"{folder}/agent.sock", "SIMGPU_STATE": f"{folder}/card"}
        hooked = run("forked_child_asks_nvml", SMALL, env=env, seconds=170)
    expect(len(hellos) == 1, "the children do not come to the agent", str(hooked))
    expect(len(re.findall("^sluice: exit", hooked.err, re.M)) == 1, "and have nothing to say at their end", hooked.err)


@test
def descriptors_taken():
    """All descriptors closed and their numbers given to the program's own sockets: nothing is read there, written there or closed, and the agent is found again."""
    pages, uuid = [], re.search(r"GPU-[0-9a-f-]+", run("vmm", SMALL).err)[0].encode()

    def talk(peer):
        pages.append(welcome(peer))
        peer.send(budget_frame(uuid, SMALL, SMALL, 1 << 40, 5 + len(pages)))
        while peer.recv(256):
            pass

    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", talk)
        hooked = run("descriptors_taken", SMALL, env={"SLUICE_SOCKET": f"{folder}/agent.sock"})
    expect(len(pages) >= 2, "it comes to the agent again", str(hooked))


if __name__ == "__main__":
    sys.exit(engine.main())
