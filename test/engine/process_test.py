"""Programs that change their own process: process_test.py BUILD [NAME...] | --list

stderr is closed, full or another file; descriptors are reused; exit() runs in a signal's handler."""

import os
import pathlib
import re
import struct
import sys
import tempfile
import threading

from engine_rig import (
    FETCHED,
    LARGE,
    MIB,
    SMALL,
    expect,
    gpu_uuid,
    is_sanitized,
    main,
    run,
    same,
    scenario,
    skip_if_sanitized,
    test,
)
from played_agent import Agent, budget_frame, welcome

scenario("impossible_sizes_are_refused", evicts=False)
scenario("calls_return_in_a_forked_child", evicts=False)
scenario("impossible_copies_are_refused")
scenario("threads_of_the_engine_are_named", evicts=False)
scenario("batches_of_values_are_refused_whole")
scenario("storm_at_the_budget", of="many_threads_at_the_budget", evicts=False)
scenario("reset_of_a_retained_context", evicts=False)
scenario("descriptors_used_up", env=FETCHED)
scenario("cancelled_threads", env=FETCHED, pressed=64 * MIB)
scenario("managed_after_a_reset", of="budget_holds_after_a_reset")


@test
def contexts_on_gpus_in_turn():
    same("contexts_on_gpus_in_turn", profile="two-gpu", evicts=False)


@test
def stderr_without_a_reader():
    """SIGPIPE ends a process that writes to a pipe without a reader. The program writes nothing there and runs on."""
    for budget in (None, SMALL):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            run("streams_created_and_destroyed", budget, stderr=writer)
        finally:
            os.close(writer)


@test
def full_stderr_is_not_waited_for():
    """A program that writes nothing to a full pipe does not wait for its reader."""
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
            run("streams_created_and_destroyed", budget, stderr=writer, seconds=60)
    finally:
        os.close(reader)
        os.close(writer)


@test
def stderr_that_is_something_else():
    """A file that the program opened under the number of stderr holds only the program's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "file"
        env = {"SCENARIO_FILE": str(file), "SLUICE_LOG_LEVEL": "DEBUG"}
        run("stderr_is_a_file_of_the_program", SMALL, env=env)
        expect(file.read_bytes() == b"", "the hook wrote nothing into it", file.read_text())


@test
def exit_in_a_handler():
    """exit() from a signal's handler, at any point of the launching thread: the process ends."""
    skip_if_sanitized("the handler calls functions that are not safe in one")
    for us in (20000, 50000, 100000, 200000) * 3:
        # The simulated GPU writes its figures with malloc, whose lock the thread may hold: they are left out.
        env = {"SCENARIO_US": str(us), "SIMGPU_STATS": ""}
        hooked = run("exit_in_a_signal_handler", SMALL, env=env, seconds=60)
        expect(hooked.out == "done exit_in_a_signal_handler\n", "it has begun", str(hooked))


@test
def forked_child_asks_nvml():
    """A forked child gets answers from the state at the fork, whichever locks were held then.

    It does not use the GPU, and the agent does not count it."""
    skip_if_sanitized("the shim answers NVML's functions")
    pages, uuid = [], gpu_uuid()

    def serve(peer):
        hello = peer.recv(256)
        if not hello or struct.unpack_from("<I", hello, 20)[0] & 2:  # it only looks, and gets no answer here
            return peer.close()
        pages.append(welcome(peer, hello=hello))
        peer.send(budget_frame(uuid, SMALL, SMALL, 1 << 40, 5))
        while peer.recv(256):
            pass

    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", lambda peer: threading.Thread(target=serve, args=(peer,), daemon=True).start())
        # With this state the simulated GPU's lock is shared by processes: a child waits for its parent's thread, not
        # for a copy of its lock.
        env = {"SLUICE_SOCKET": f"{folder}/agent.sock", "SIMGPU_STATE": f"{folder}/card"}
        hooked = run("forked_child_asks_nvml", SMALL, env=env, seconds=170)
    expect(len(pages) == 1, "the children do not attach to the agent", str(hooked))
    expect(len(hooked.lines()) == 1, "the children log no exit line", hooked.err)


@test
def descriptors_taken():
    """The program closes all descriptors, and its own sockets get their numbers.

    The hook does not read, write or close these, and connects to the agent again."""
    pages, uuid = [], gpu_uuid()

    def talk(peer):
        pages.append(welcome(peer))
        peer.send(budget_frame(uuid, SMALL, SMALL, 1 << 40, 5 + len(pages)))
        while peer.recv(256):
            pass

    with tempfile.TemporaryDirectory() as folder:
        Agent(f"{folder}/agent.sock", talk)
        hooked = run("descriptors_reused_by_the_program", SMALL, env={"SLUICE_SOCKET": f"{folder}/agent.sock"})
    expect(len(pages) >= 2, "the hook connects to the agent again", str(hooked))


@test
def checkpoints():
    unhooked, managed = run("checkpoints"), run("checkpoints", LARGE)
    expect("own 0 0, state 2" in unhooked.err and "child 1, other 1" in unhooked.err, "the driver's", unhooked.err)
    expect("own 801 801, state 0" in managed.err, "refused, and the process goes on", managed.err)
    # A hooked process is recognised by the engine's file in its maps, which a sanitizer's program does not have.
    child = 1 if is_sanitized() else 801
    expect(f"child {child}, other 1" in managed.err, "a child with the hook, and a program without it", managed.err)
    warned = managed.logged("WARN", "cuCheckpointProcessLock", "SLUICE_UNMANAGED=1")
    expect(len(warned) == 1, "one WARN names the setting that allows it", managed.err)
    expect(managed.out == unhooked.out, "results differ", managed.out)
    allowed = run("checkpoints", LARGE, env={"SLUICE_UNMANAGED": "1"})
    output = lambda outcome: re.findall(r"own .*|child .*", outcome.err)
    expect(output(allowed) == output(unhooked), "with SLUICE_UNMANAGED=1 as without the hook", allowed.err)


if __name__ == "__main__":
    sys.exit(main())
