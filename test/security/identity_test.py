#!/usr/bin/env python3
"""A process of one tenant that presents itself as another's.

identity_test.py BIN_DIR TEST_DIR [name...]
"""

import json
import re
import subprocess
import sys
import time
import urllib.request

from attacker import behind_own_mount, contained, pod_cgroup

from agent_rig import Skipped, metrics_port, read_metrics, run, test, wait_for  # isort: skip

CONFIG = "attestation: {interval_s: 1}\nmetrics: {listen: '127.0.0.1:0'}\n"


def forged(port):
    return int(re.search(r"^sluice_forged_claims_total (\d+)", read_metrics(port), re.M)[1])


def listed(a, *processes):
    (a.dir / "gpu-processes").write_text("".join(f"{p.pid}\n" for p in processes))


def checks_passed(a, count=3):
    """At least so many checks of the agent, by an external process of the test that is reported in the second one."""
    time.sleep(count)


def settled(a, p):
    wait_for("the namespace's program", lambda: open(f"/proc/{p.pid}/comm").read() == "sleep\n")
    listed(a, p)


@test(config=CONFIG)
def a_mount_called_as_anothers_charges_its_own_container(a):
    port = metrics_port(a)
    victim, attacker = a.allocate("pod-victim", 50), a.allocate("pod-attacker", 50)
    a.dir.chmod(0o755)
    hook = a.hook(victim)
    if subprocess.run(["unshare", "-Um", "--map-root-user", "true"], capture_output=True).returncode != 0:
        raise Skipped("no user namespaces here")
    for name in ("pod-victim", "stranger"):
        before = forged(port)
        fake = a.dir / "x" / name
        fake.mkdir(parents=True, exist_ok=True)
        p = contained(attacker.parent, behind_own_mount(fake, "sleep 60"))
        try:
            settled(a, p)
            wait_for("its own container is named", lambda: a.allocation("pod-attacker")["hook_state"] == "not hooked")
            wait_for("the forged claim is counted", lambda before=before: forged(port) == before + 1)
            checks_passed(a)
            assert forged(port) == before + 1, "counted once a process"
            assert a.allocation("pod-victim")["hook_state"] == "attached"
        finally:
            p.kill()
            p.wait()
        listed(a)
        wait_for("its end", lambda: a.allocation("pod-attacker")["hook_state"] == "expected")
    assert [e["allocation"] for e in a.events("not hooked")] == ["pod-attacker"] * 2
    claims = a.events("forged identity")
    assert [e["allocation"] for e in claims] == ["pod-attacker"] * 2, claims
    assert not any("victim" in e["text"] for e in claims), claims
    assert not a.events("external process") and not hook.seen("lost")


@test(config=CONFIG)
def a_variable_that_names_another_allocation_counts_for_nothing(a):
    victim = a.allocate("victim", 50)
    p = subprocess.Popen(["sleep", "60"], env={"SLUICE_SOCKET": str(victim), "PATH": "/usr/bin:/bin"})
    try:
        listed(a, p)
        wait_for("external", lambda: a.events("external process"))
        assert a.allocation("victim")["hook_state"] == "expected" and not a.events("not hooked")
    finally:
        p.kill()
        p.wait()


@test(config=CONFIG)
def a_process_that_left_all_mounts_is_known_by_its_cgroup(a):
    """The cgroup of a process that once connected names the container, also for one that shows no mount at all."""
    attacker = a.allocate("pod-attacker", 50)
    procs = pod_cgroup("0f3a2b4c-1111-2222-3333-444455556666", "c")
    hook = a.hook(attacker)
    procs.write_text(str(hook.p.pid))  # before the agent looks: it reads the cgroup of each that connects
    again = contained(attacker.parent, "exec /opt/program /opt/sluice/run/agent.sock", procs, hook.p.args[0],
                      stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # fmt: skip
    wait_for("two processes", lambda: len(a.allocation("pod-attacker")["processes"]) == 2)
    p = subprocess.Popen(["sh", "-c", f"echo $$ > {procs} && exec sleep 60"])
    try:
        settled(a, p)
        wait_for("not hooked", lambda: a.allocation("pod-attacker")["hook_state"] == "not hooked")
    finally:
        for x in (p, again):
            x.kill()
            x.wait()


@test(config=CONFIG)
def ids_are_nowhere_without_authentication(a):
    port = metrics_port(a)
    sock = a.allocate("secret-0123456789abcdef", 50)
    a.hook(sock)
    pages = [urllib.request.urlopen(f"http://127.0.0.1:{port}/{x}").read().decode() for x in ("metrics", "status.json")]
    for page in pages:
        assert "secret-0123" not in page.replace("p-secret-0123456789abcdef", ""), page
        assert "p-secret-0123456789abcdef" in page and "ns" in page
    shown = json.loads(pages[1])["allocations"][0]["id"]
    assert f'allocation="{shown}"' in pages[0] and re.fullmatch("[0-9a-f]{12}", shown), shown
    a.kill()
    a.start()

    def ports():
        return [line.split()[-1] for line in (a.dir / "log").read_text().split("\n") if "metrics at port" in line]

    wait_for("the second server", lambda: len(ports()) == 2)
    assert f'allocation="{shown}"' in read_metrics(ports()[-1]), "a series keeps its label over restarts"
    key = a.dir / "run" / "metrics.key"
    assert key.stat().st_mode & 0o777 == 0o600


if __name__ == "__main__":
    sys.exit(run())
