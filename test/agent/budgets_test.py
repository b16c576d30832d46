#!/usr/bin/env python3
"""Budgets, lending, tokens and live settings, with real processes.

budgets_test.py BIN_DIR TEST_DIR [name...]
"""

import os
import re
import signal
import threading
import time

from agent_rig import GIB, UUID, run, test, wait_for


@test()
def budget_is_the_fraction_of_the_gpu(a):
    h = a.hook(a.allocate("one", 50, memory_factor="80", prefetch="launch"))
    b = h.expect("budget")
    assert b[1] == UUID % 0 and int(b[2]) == 4 * GIB and int(b[3]) == 4 * GIB, b
    assert b[6:9] == ["500000", "1000000", "80"] and b[9] == "1", b
    one = a.allocation("one")
    assert one["hook_state"] == "attached" and one["processes"][0]["pid"] == h.p.pid, one
    assert one["processes"][0]["hook_version"] == "0.0.0-fake"


@test()
def hook_state_follows_the_process(a):
    sock = a.allocate("one", 50)
    assert a.allocation("one")["hook_state"] == "expected"
    h = a.hook(sock)
    h.command(f"live {GIB}")
    wait_for("live bytes", lambda: a.allocation("one")["processes"][0]["gpus"][0]["live_bytes"] == GIB)
    h.end()
    wait_for("release", lambda: not a.allocation("one")["processes"])
    (sock.parent / "allocation.json").unlink()
    wait_for("the allocation to go", lambda: a.allocation("one") is None)
    assert not sock.exists()


@test()
def idle_guarantee_is_lent_and_reclaimed(a):
    x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.command(f"live {6 * GIB}")
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    total, card = a.ledger()
    assert total <= 8 * GIB and card["lent_bytes"] > 0, (total, card)
    x.command(f"live {4 * GIB}")
    wait_for("the owner's budget", lambda: x.budget() >= 4 * GIB)
    assert y.budget() <= 4 * GIB
    assert a.ledger()[1]["overdue_bytes"] == 0


@test(config="lending: {reclaim_late_ms: 200}\n")
def memory_of_a_stopped_borrower_is_overdue(a):
    x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.command(f"live {6 * GIB}")
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    y.p.send_signal(signal.SIGSTOP)
    x.command(f"live {4 * GIB}")
    wait_for("overdue memory", lambda: a.ledger()[1]["overdue_bytes"] > 0)
    wait_for("late event", lambda: a.events("reclaim late"))
    assert x.budget() >= GIB // 4  # the owner keeps its floor
    y.p.send_signal(signal.SIGCONT)
    wait_for("the owner's budget", lambda: x.budget() >= 4 * GIB)
    y.p.send_signal(signal.SIGSTOP)
    y.end()
    wait_for("release", lambda: not a.allocation("y")["processes"])


@test()
def an_opportunistic_container_waits_for_lent_memory_and_says_so(a):
    """Beside guarantees that fill the GPU. Its launches wait, without an error, and go on when the owner is idle."""
    owner = a.hook(a.allocate("owner", 100))
    owner.command(f"live {8 * GIB}")
    owner.command("launch")
    wait_for("the owner's budget", lambda: owner.budget() > 7 * GIB)
    guest = a.hook(a.allocate("guest", 50, priority="opportunistic"))
    first = guest.expect("budget")
    assert int(first[2]) == 0 and int(first[3]) == 4 * GIB and first[6] == "0", first  # queries report its size
    assert first[-1] == "1", "it needs tokens though no one else does"
    assert owner.last()[-1] == "0", owner.last()
    guest.command(f"live {2 * GIB}")
    guest.command(f"request 0 {10**6}")
    wait_for("the reason", lambda: a.allocation("guest").get("held", "").startswith("no memory of GPU " + UUID % 0))
    for words in (["top", "--once"], ["status"]):
        assert "(opportunistic) wait: no memory of GPU " in a.cli(*words).stdout, words
    wait_for("the event", lambda: a.events("held"))
    assert not guest.seen("grant"), guest.seen("grant")
    owner.command("live 0")
    wait_for("lent memory", lambda: guest.budget() >= 2 * GIB, 20)
    guest.expect("grant")
    wait_for("the end of the wait", lambda: not a.allocation("guest").get("held"))
    assert a.events("resumed")
    begin = time.monotonic()
    owner.command(f"live {8 * GIB}")
    wait_for("the owner's memory", lambda: owner.budget() > 7 * GIB)
    assert time.monotonic() - begin < 2, time.monotonic() - begin
    assert guest.budget() == 0
    guest.expect("revoke")
    r = a.cli("run", "--priority", "low", "--", "true", check=False)
    assert r.returncode == 2 and "--priority: 'low' is not accepted; accepted: guaranteed, opportunistic" in r.stderr, r
    r = a.cli("run", "--priority", "opportunistic", "--compute-request", "0.5", "--", "true", check=False)
    assert r.returncode == 2 and "--compute-request: '0.5' beside --priority 'opportunistic'" in r.stderr, r


@test()
def settings_change_live(a):
    h = a.hook(a.allocate("one-abc", 50))
    a.cli("set", "one", "gpu-memory=2Gi", "log-level=DEBUG", "compute-limit=0.5")
    wait_for("new budget", lambda: h.budget() == 2 * GIB and h.last()[10] == "3" and h.last()[7] == "500000")
    r = a.cli("set", "one", "memory-factor=0", check=False)
    assert (
        r.returncode == 2 and "memory-factor: '0' is not accepted; accepted: a whole number from 1 to 100" in r.stderr
    ), r
    r = a.cli("set", "two", "memory-factor=50", check=False)
    assert r.returncode == 2 and "id: 'two' is unknown; accepted: one-abc" in r.stderr, r
    r = a.cli("set", "", "memory-factor=50", check=False)  # it begins every id, and selects none
    assert r.returncode == 2 and "id: '' is unknown; accepted: one-abc" in r.stderr, r
    r = a.cli("set", "one", "visible-memory=limit", check=False)
    assert r.returncode == 2 and "cannot change" in r.stderr, r
    r = a.cli("set", "one", "gpu-memory=9Gi", check=False)
    assert r.returncode == 2 and "gpu-memory: '9Gi' is not accepted; accepted: at most 8Gi" in r.stderr, r
    r = a.cli("set", "one", "gpu-fraction=2", check=False)
    assert r.returncode == 2 and "accepted: 0.01 to 1, as one-abc has 1 GPU" in r.stderr, r
    r = a.cli("set", "one", "gpu-fraction=0.9")
    assert "gpu-fraction=0.9\n" in r.stdout and "more than its 50 units of sluice.dev/gpu-percent" in r.stderr, r
    wait_for("the fraction, of time too", lambda: h.budget() == 8 * GIB * 90 // 100 and h.last()[6] == "500000")
    r = a.cli("set", "one", "gpu-fraction=0.4")
    assert r.stderr == "", r
    wait_for("the smaller fraction", lambda: h.budget() == 8 * GIB * 40 // 100 and h.last()[6] == "400000")
    a.hook(a.allocate("other", 50))
    r = a.cli("set", "one", "gpu-fraction=0.6", check=False)
    assert r.returncode == 2 and "accepted: at most 0.5" in r.stderr, r
    row = next(line for line in a.cli("status").stdout.splitlines() if line.startswith("one-abc"))
    assert re.search(r" attached +50 +40% +3\.2 GiB ", row), row  # the units, the fraction that was set, its bytes
    r = a.cli("set", "one", "gpu-fraction=", "log-level=")
    assert r.stdout == "compute-limit=0.5\n", r
    wait_for("its own share", lambda: h.budget() == 4 * GIB and h.last()[10] != "3")
    r = a.cli("set", "one", "log-level=", check=False)
    assert (
        r.returncode == 2
        and "log-level: an empty value removes a setting, and this one is not set; set: compute-limit\n" in r.stderr
    ), r
    for arguments in (["one", b"memory-factor=\xff"], ["one", b"\xff=1"], [b"\xff", "memory-factor=50"]):
        r = a.cli("set", *arguments, check=False)  # protobuf refuses such text with a line of its own
        assert r.returncode == 2 and r.stderr.count("\n") == 1 and "accepted: " in r.stderr, r
    assert h.p.poll() is None


@test()
def changed_configuration_is_applied_live_and_a_bad_one_is_not(a):
    h = a.hook(a.allocate("one", 50))
    (a.dir / "config.yaml").write_text("clients:\n  - {id: one, request: 0.2, limit: 0.6, memory: 1Gi}\n")
    wait_for("the file's budget", lambda: h.budget() == GIB and h.last()[6:8] == ["200000", "600000"])
    (a.dir / "config.yaml").write_text("clients:\n  - id: one\n    memory: 2Gii\n")
    error = wait_for("the error", lambda: a.status()["config_error"])
    assert "config.yaml:3: clients[0].memory: '2Gii' is not accepted" in error, error
    assert h.budget() == GIB
    (a.dir / "new").write_text("clients: [{id: 'ns/p-*/c', memory: 3Gi}]\n")
    os.rename(a.dir / "new", a.dir / "config.yaml")
    wait_for("the third budget", lambda: h.budget() == 3 * GIB)
    assert a.status()["config_error"] == ""


@test()
def whatever_takes_the_configurations_place_holds_nobody_up(a):
    h = a.hook(a.allocate("one", 50))
    file = a.dir / "config.yaml"

    def refused(why):
        return wait_for(why, lambda: why in a.status()["config_error"])

    file.write_bytes(b"log: {level: '\xff\x1b'}\n")  # its error is part of the status, which must stay readable
    refused("log.level: '??' is not accepted")
    file.write_bytes(b"log: {level: '\xff'}\n")
    refused("log.level: '?' is not accepted")
    file.write_text("#" * (2 << 20))
    refused("larger than 1 MiB")
    file.unlink()
    file.mkdir()
    refused("Is a directory")
    file.rmdir()
    os.mkfifo(file)  # an ordinary open() waits for a writer
    refused("is no plain file")
    file.unlink()
    file.write_text("clients: [{id: one, memory: 1Gi}]\n")
    wait_for("the file's budget", lambda: h.budget() == GIB)


@test()
def host_memory_is_shared_and_capped(a):
    (a.dir / "config.yaml").write_text("host_memory: {bytes: 10Gi}\n")
    wait_for("the cap", lambda: a.status()["host_limit_bytes"] == 10 * GIB)
    x, y = a.hook(a.allocate("x", 75)), a.hook(a.allocate("y", 25))
    wait_for("shares", lambda: int(x.last()[5]) == 15 * GIB // 2 and int(y.last()[5]) == 5 * GIB // 2)


@test()
def tokens_are_demanded_granted_and_revoked(a):
    h = a.hook(a.allocate("one", 50, compute_limit="0.5"))
    stop = threading.Event()

    def work():
        while not stop.is_set() and h.p.poll() is None:
            h.command("launch")
            time.sleep(0.05)

    threading.Thread(target=work, daemon=True).start()
    wait_for("tokens demanded", lambda: h.last()[12] == "1")
    assert a.events("tokens demanded")[-1]["text"].endswith(": a container that works has a compute limit")
    h.command("request 0 20000000")
    grant = h.expect("grant")
    assert int(grant[2]) == 20000000, grant
    time.sleep(0.03)  # the reported time counts up to the time that passed
    h.command(f"release {grant[1]} 20000000")
    wait_for("charged", lambda: 0.0019 < a.allocation("one")["gpus"][0]["compute_used"] < 0.0021)
    h.command("request 0 20000000")
    h.expect("grant", 2)
    h.expect("revoke")  # not released: the lease ends
    x = a.hook(a.allocate("two", 50))
    x.command("request 0 1000000")
    x.expect("grant")
    x.end()  # ends with the token
    h.command("request 0 20000000")
    h.expect("grant", 3)
    stop.set()
    wait_for("tokens not demanded", lambda: h.last()[12] == "0")


@test()
def a_stopped_agent_blocks_no_process(a):
    """A hook without an answer to its request for a token continues without one, and attaches again to the agent."""
    h = a.hook(a.allocate("one", 50, compute_limit="0.5"))

    def demanded():
        h.command("launch")
        return h.last()[12] == "1"

    wait_for("tokens demanded", demanded)
    a.p.send_signal(signal.SIGSTOP)
    try:
        h.command("request 0 20000000")
        wait_for("the hook to give it up", lambda: h.seen("lost"), 30)
    finally:
        a.p.send_signal(signal.SIGCONT)
    h.expect("welcome", 2)
    wait_for("served as before", lambda: len(a.allocation("one")["processes"]) == 1 and h.budget() == 4 * GIB)


@test()
def tenants_stopped_forked_and_killed_with_a_token(a):
    x, y = a.hook(a.allocate("x", 50, compute_limit="0.9")), a.hook(a.allocate("y", 50))
    stop = threading.Event()

    def work():
        while not stop.is_set():
            for h in (x, y):
                if h.p.poll() is None:
                    h.command("launch")
            time.sleep(0.05)

    threading.Thread(target=work, daemon=True).start()
    wait_for("tokens demanded", lambda: x.last()[12] == "1")
    x.command("request 0 20000000")
    x.expect("grant")
    x.command("fork")  # the child has a copy of the socket
    child = int(x.expect("child")[1])
    x.p.send_signal(signal.SIGSTOP)
    y.command("request 0 20000000")
    y.expect("grant")  # the lease of the stopped process ends
    x.p.send_signal(signal.SIGCONT)
    x.expect("revoke")
    x.command("request 0 20000000")
    y.command("release {} 20000000".format(y.seen("grant")[0][1]))
    x.expect("grant", 2)
    x.end()
    y.command("request 0 20000000")
    y.expect("grant", 2)
    os.kill(child, signal.SIGKILL)
    stop.set()
    assert a.ledger()[1]["overdue_bytes"] == 0


if __name__ == "__main__":
    run()
