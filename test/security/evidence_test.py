#!/usr/bin/env python3
"""A process that says it is hooked and is not, by its page and the driver.

evidence_test.py BIN_DIR TEST_DIR [name...]
"""

import os
import socket
import subprocess
import sys
import time

from attacker import hello

from agent_rig import GIB, UUID, metrics_port, read_metrics, run, test, wait_for  # isort: skip

CONFIG = "attestation: {interval_s: 1}\nmetrics: {listen: '127.0.0.1:0'}\n"


def state(agent):
    return agent.allocation("one")["hook_state"]


def show(a, *words):
    (a.dir / "gpu-processes").write_text("".join(f"{w}\n" for w in words))


@test(config=CONFIG)
def hello_without_a_hook_is_unproven_and_then_not_hooked(a):
    sock = str(a.allocate("one", 50))
    code = (
        "import os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[1])\n"
        "s.send(sys.stdin.buffer.read(256))\n"
        "os.set_inheritable(s.fileno(),True);os.execvp('sleep',['sleep','60'])\n"
    )
    p = subprocess.Popen([sys.executable, "-c", code, sock], stdin=subprocess.PIPE)
    p.stdin.write(hello(p.pid))
    p.stdin.close()
    try:
        wait_for("HELLO", lambda: a.allocation("one")["processes"])
        show(a, p.pid)
        shown = time.time() * 1e3
        wait_for("unproven", lambda: state(a) == "unproven")
        one = a.allocation("one")
        assert "its hook has written nothing since it connected" in one["hook_reason"], one
        assert one["processes"][0]["proof"] == "unproven", one
        text = read_metrics(metrics_port(a))
        assert any(x.startswith("sluice_processes_unproven{") and x.endswith(" 1") for x in text.split("\n")), text
        assert 'state="unproven"} 1' in text
        doctor = a.cli("doctor", check=False, env={"SLUICE_RUN_DIR": str(a.dir / "run")}.items()).stdout
        assert "its hook has written nothing" in doctor, doctor
        wait_for("not hooked", lambda: state(a) == "not hooked", 20)  # on_not_hooked applies to it
        # By the agent's clock: on a busy machine the tools themselves take seconds.
        output, doubted = [int(a.events(kind)[0]["unix_ms"]) for kind in ("attached", "unproven")]
        assert doubted - max(output, shown) < 7000, (output, shown, doubted)
    finally:
        p.kill()
        p.wait()


@test(config=CONFIG)
def memory_beside_the_hook_is_unproven(a):
    h = a.hook(a.allocate("one", 50))
    show(a, f"{h.p.pid}:{300 << 20}:0")
    time.sleep(4)
    assert state(a) == "attached" and a.allocation("one")["processes"][0]["proof"] == "idle"
    show(a, f"{h.p.pid}:{4 * GIB}:0")
    wait_for("unproven", lambda: state(a) == "unproven")
    assert f"the driver shows 4.0 GiB on GPU {UUID % 0}, its hook counts 0 B" in a.allocation("one")["hook_reason"]
    h.command(f"plain {4 * GIB}")
    h.command("launch")
    wait_for("the accounts agree", lambda: state(a) == "attached")
    assert a.allocation("one")["processes"][0]["proof"] == "proven"


@test(config=CONFIG)
def use_of_the_gpu_without_a_counted_launch_is_unproven(a):
    h = a.hook(a.allocate("one", 50))
    show(a, f"{h.p.pid}:{300 << 20}:80")
    wait_for("unproven", lambda: state(a) == "unproven")
    assert "its hook counts no launch" in a.allocation("one")["hook_reason"]
    h.command("launch")
    wait_for("the accounts agree", lambda: state(a) == "attached")


@test(config=CONFIG)
def a_child_without_the_preload_is_not_hooked(a):
    """A hooked program starts another one and removes LD_PRELOAD in between: its children are the container's too."""
    h = a.hook(a.allocate("one", 50))
    h.command("fork")
    child = int(h.expect("child")[1])
    show(a, h.p.pid)
    time.sleep(2.5)
    assert state(a) == "attached"
    show(a, h.p.pid, child)
    wait_for("not hooked", lambda: state(a) == "not hooked")
    assert f"pid {child} uses the GPU" in a.events("not hooked")[0]["text"]
    os.kill(child, 9)
    show(a, h.p.pid)
    wait_for("attached again", lambda: state(a) == "attached")


@test(config=CONFIG)
def a_page_of_any_content_ends_nothing_and_charges_no_one_else(a):
    """A tenant scribbles over its page: the agent's sums, its ledger and the other tenant's budget stay sound."""
    import array
    import mmap
    import random

    victim = a.hook(a.allocate("two", 50))
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(str(a.allocate("one", 50)))
    s.send(hello())
    _data, control, _flags, _from = s.recvmsg(256, socket.CMSG_SPACE(4))
    page = array.array("i", control[0][2])[0]
    view = mmap.mmap(page, 8192)
    rnd = random.Random(7)
    for size in (4096, 16384):
        try:
            os.ftruncate(page, size)
            raise AssertionError(f"the page was resized to {size}")
        except PermissionError:
            pass
    for i in range(60):
        fill = (b"\xff" * 8192, b"\0" * 8192)[i % 2] if i % 3 == 0 else rnd.randbytes(8192)
        view[:] = fill
        view[64 : 64 + 48] = (UUID % 0).encode().ljust(48, b"\0")
        total, card = a.ledger()
        assert total <= 8 * GIB and card["lent_bytes"] <= 8 * GIB, (total, card)
        assert read_metrics(metrics_port(a)).count("sluice_budget_bytes{") == 2
        time.sleep(0.02)
    assert a.p.poll() is None
    assert victim.budget() >= 4 * GIB // 10  # the floor of its guarantee, whatever a borrower's page says
    assert a.allocation("two")["hook_state"] == "attached"


if __name__ == "__main__":
    sys.exit(run())
