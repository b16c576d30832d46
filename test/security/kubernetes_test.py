#!/usr/bin/env python3
"""Tenants on a node of Kubernetes: GPUs and sockets of other pods, readers of metrics. With a fake API server.

kubernetes_test.py BIN_DIR TEST_DIR [name...]
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import threading
import time

from attacker import hello, pod_cgroup
from fake_api import FakeApi
from slow_clients import withstands

from agent_rig import HERE, UUID, Skipped, at_once, metrics_port, read_metrics, run, test, wait_for  # isort: skip

UID = "0f3a2b4c-0000-0000-0000-%012d"


class Node:
    """The agent of `a`, started again beside a fake API server; this plays kubelet."""

    def __init__(self, a, more=""):
        self.a, self.api, self.given, self.made = a, FakeApi(), [], []
        a.kill(signal.SIGTERM)
        self.api.kubeconfig(a.dir / "kubeconfig")
        (a.dir / "kubelet").mkdir()
        self.more = more

    def start(self):
        (self.a.dir / "config.yaml").write_text(
            f"node: n1\nkubernetes: {{enabled: true, kubeconfig: {self.a.dir}/kubeconfig, "
            f"kubelet_dir: {self.a.dir}/kubelet}}\n" + self.more
        )
        self.a.start()

    def allocate(self, name, n, units, gpu):
        sock = self.a.allocate("pod-" + name, units, gpu, wait=False)
        self.api.pod(name, UID % n, units=units)

        def field(number, data):
            size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
            return bytes([number << 3 | 2]) + size + data

        response = field(2, field(1, b"/opt/sluice/run") + field(2, str(sock.parent).encode()))
        self.given.append(
            {
                "PodUID": UID % n,
                "ContainerName": "main",
                "ResourceName": "sluice.dev/gpu-percent",
                "DeviceIDs": {"-1": [f"{UUID % gpu}::{i}" for i in range(units)]},
                "AllocResp": base64.b64encode(response).decode(),
            }
        )
        (self.a.dir / "kubelet" / "kubelet_internal_checkpoint").write_text(
            json.dumps({"Data": {"PodDeviceEntries": self.given, "RegisteredDevices": {}}, "Checksum": 1})
        )
        return sock

    def process(self, n, *command):
        procs = pod_cgroup(UID % n, "c")
        p = subprocess.Popen(["sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *command], stdin=subprocess.PIPE)
        self.made.append(p)
        return p

    def close(self):
        for p in self.made:
            p.kill()
            p.wait()
        self.api.close()


def on_node(more=""):
    def wrap(f):
        def case(a):
            node = Node(a, more)
            try:
                f(a, node)
            finally:
                node.close()

        case.__name__ = f.__name__
        test(gpus=2)(case)
        return f

    return wrap


METRICS = "metrics: {listen: '127.0.0.1:0'}\n"


@on_node(METRICS)
def a_process_of_another_pod_is_refused_at_the_socket(a, node):
    victim = node.allocate("victim", 1, 50, 0)
    node.allocate("attacker", 2, 50, 1)
    node.start()
    wait_for("names", lambda: a.allocation("pod-attacker")["pod"] == "attacker" and victim.exists())
    honest = node.process(1, HERE / "fake_hook", victim)
    wait_for("its own process", lambda: a.allocation("pod-victim")["processes"])
    node.process(2, HERE / "fake_hook", victim, "300")
    wait_for("the Event on the attacker's pod", lambda: "SluiceForgedIdentity" in node.api.reasons("attacker"))
    time.sleep(0.5)
    one = a.allocation("pod-victim")
    assert [p["pid"] for p in one["processes"]] == [honest.pid] and one["hook_state"] == "attached", one
    assert not {"SluiceForgedIdentity", "SluiceRefused", "SluiceNotHooked"} & set(node.api.reasons("victim"))
    assert int(re.search(r"^sluice_forged_claims_total (\d+)", read_metrics(metrics_port(a)), re.M)[1]) >= 1


def start_as(pid, procs, seconds=60):
    """A process with this pid, in a cgroup, which sleeps. None: others took the pid first, or it cannot be chosen."""
    try:
        pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    except OSError as why:
        raise Skipped(f"pids cannot be chosen here: {why}") from why
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    if child == pid:
        procs.write_text(str(child))
        return child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@on_node(METRICS)
def a_pid_that_became_another_pods_is_not_its_connection(a, node):
    """An attacker connects and ends before the agent looks; a process of the victim then has its pid."""
    victim = node.allocate("victim", 1, 50, 0)
    attacked = node.allocate("attacker", 2, 50, 1)
    node.start()
    wait_for("names", lambda: a.allocation("pod-attacker")["pod"] == "attacker" and attacked.exists())
    honest = node.process(1, HERE / "fake_hook", victim)
    wait_for("its own process", lambda: a.allocation("pod-victim")["processes"])
    code = (
        "import os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[1])\n"
        "s.send(sys.stdin.buffer.read(256))\n"
        "os.set_inheritable(s.fileno(),True)\n"
        "if os.fork()==0: os.execvp('sleep',['sleep','60'])\n"
    )
    taken = None
    for _ in range(20):
        a.p.send_signal(signal.SIGSTOP)
        try:
            p = node.process(2, sys.executable, "-c", code, attacked)
            p.stdin.write(hello(p.pid))
            p.stdin.close()
            p.wait()  # a child keeps the connection
            taken = start_as(p.pid, pod_cgroup(UID % 1, "c"))
        finally:
            a.p.send_signal(signal.SIGCONT)
        if taken:
            break
        time.sleep(0.5)
    if not taken:
        raise Skipped("other processes took the pid each time")
    try:
        time.sleep(1.5)
        assert not {"SluiceForgedIdentity", "SluiceRefused"} & set(node.api.reasons("victim")), node.api.events
        assert int(re.search(r"^sluice_forged_claims_total (\d+)", read_metrics(metrics_port(a)), re.M)[1]) == 0
        assert taken not in [x["pid"] for x in a.allocation("pod-attacker")["processes"]]
        assert [x["pid"] for x in a.allocation("pod-victim")["processes"]] == [honest.pid]
    finally:
        os.kill(taken, signal.SIGKILL)
        os.waitpid(taken, 0)


def foreign(agent):
    return {(f["pod"], f["gpu"]) for f in agent.status().get("foreign", [])}


@on_node(METRICS + "attestation: {on_not_hooked: evict, exempt_namespaces: [kube-system]}\n")
def processes_on_gpus_of_others_are_reported_within_two_seconds(a, node):
    node.allocate("own", 1, 50, 0)
    node.allocate("strays", 2, 50, 0)
    node.api.pod("guest", UID % 3)
    node.api.pod("system", UID % 4, ns="kube-system")
    node.start()
    wait_for("names", lambda: a.allocation("pod-strays")["pod"] == "strays")
    own = node.process(1, HERE / "fake_hook", a.dir / "alloc/pod-own/agent.sock")
    wait_for("the hook", lambda: a.allocation("pod-own")["processes"])
    strays, guest, system = [node.process(n, "sleep", "60") for n in (2, 3, 4)]
    at_once(a.p.pid)
    begin = time.time() * 1e3
    (a.dir / "gpu-processes").write_text(f"{own.pid} {strays.pid}@1 {guest.pid}@1 {system.pid}@1\n")
    want = {("strays", UUID % 1), ("guest", UUID % 1)}
    wait_for("both", lambda: foreign(a) == want)
    # By the agent's clock: on a busy machine the tools themselves take seconds.
    told = [int(e["unix_ms"]) - begin for e in a.events("foreign card")]
    assert len(told) == 2 and max(told) < 2000, told
    for pod in ("strays", "guest"):
        wait_for("Events on " + pod, lambda p=pod: {"SluiceForeignCard", "SluiceEvicted"} <= set(node.api.reasons(p)))
    wait_for("two deletions", lambda: len(node.api.deleted) == 2)
    assert {path.rsplit("/", 1)[1] for path in node.api.deleted} == {"strays", "guest"}
    top = a.cli("top", "--once").stdout
    assert f"a process on a GPU that it was not given: pid {guest.pid}, team/guest, GPU {UUID % 1}" in top, top
    page = read_metrics(metrics_port(a))
    assert f'sluice_foreign_processes{{gpu="{UUID % 1}",namespace="team",pod="guest"}} 1' in page, page
    assert not node.api.reasons("system") and "SluiceForeignCard" not in node.api.reasons("own")
    (a.dir / "gpu-processes").write_text(f"{own.pid}\n")
    wait_for("their end", lambda: foreign(a) == set())


def secure(agent):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = metrics_port(agent)

    def connection():
        return contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context))

    def get(path, token=None, one=None):
        c = one or http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        c.request("GET", path, headers={"Authorization": "Bearer " + token} if token else {})
        answer = c.getresponse()
        return answer.status, answer.read().decode()

    get.connection = connection
    return get


@on_node("metrics: {listen: '127.0.0.1:0', authentication: kubernetes}\n")
def metrics_are_for_those_whom_the_api_server_allows(a, node):
    node.allocate("named", 1, 50, 0)
    node.api.users = {"scraper-token": "scraper", "guest-token": "guest"}
    node.api.allowed = {("scraper", "/metrics"), ("scraper", "/status.json")}
    node.start()
    get = secure(a)
    for path in ("/metrics", "/status.json"):
        assert get(path)[0] == 401 and not node.api.reviews, "no token costs no review"
        assert get(path, "wrong")[0] == 401
        code, output = get(path, "guest-token")
        assert code == 403 and f"'guest' may not get the non-resource URL {path}" in output, (code, output)
        code, page = get(path, "scraper-token")
        assert code == 200 and "pod-named" in page, (code, page)  # ids, for authenticated readers
        node.api.reviews.clear()
        for _ in range(5):
            assert get(path, "scraper-token")[0] == 200 and get(path, "wrong")[0] == 401
        assert not node.api.reviews, "answers are remembered"
    assert get("/healthz") == (200, "ok\n")
    assert get("/other", "scraper-token")[0] == 404


@on_node("metrics: {listen: '127.0.0.1:0', authentication: kubernetes}\n")
def a_flood_of_wrong_tokens_reaches_the_api_server_slowly(a, node):
    node.api.users, node.api.allowed = {"scraper-token": "scraper"}, {("scraper", "/metrics")}
    node.start()
    get = secure(a)
    assert get("/metrics", "scraper-token")[0] == 200
    begin, codes = time.monotonic(), []
    with get.connection() as one:
        while len(codes) < 300 or time.monotonic() - begin < 2:
            codes.append(get("/metrics", f"wrong-{len(codes)}", one)[0])
    allowed = 25 + 10 * (time.monotonic() - begin)
    assert len(node.api.reviews) <= allowed, (len(node.api.reviews), allowed)
    assert set(codes) <= {401, 503} and codes.count(401) <= allowed, set(codes)
    assert get("/metrics", "scraper-token")[0] == 200, "a known token is served meanwhile"
    assert get("/healthz")[0] == 200


@on_node("metrics: {listen: '127.0.0.1:0', authentication: kubernetes}\n")
def an_api_server_that_hangs_keeps_no_probe_waiting(a, node):
    """Wrong tokens from several clients: each review takes its whole timeout, and no other request does."""
    node.api.users, node.api.allowed = {"scraper-token": "scraper"}, {("scraper", "/metrics")}
    node.start()
    get = secure(a)
    assert get("/metrics", "scraper-token")[0] == 200
    node.api.hangs = True
    readers = [threading.Thread(target=get, args=("/metrics", f"wrong-{i}")) for i in range(6)]
    for reader in readers:
        reader.start()
    wait_for("the first review that hangs", lambda: len(node.api.reviews) >= 2)
    time.sleep(0.2)
    took = []
    for _ in range(8):
        begin = time.monotonic()
        assert get("/healthz")[0] == 200 and get("/metrics", "scraper-token")[0] == 200
        took.append(time.monotonic() - begin)
        time.sleep(0.1)
    assert max(took) < 1, took
    node.api.hangs = False
    for reader in readers:
        reader.join()


GIANT = {
    "of the container": {"sluice.dev/memory-limit": "9" * 200_000},
    "not a number": {"sluice.dev/gpu-fraction": "x" * 250_000},
    "control characters": {"sluice.dev/priority": "\n\x1b[31m" * 20_000},
    "many keys": {f"sluice.dev/{'k' * 50}{i}": "v" for i in range(3500)},
    "many containers": {f"gpu-memory.sluice.dev/c{i}": "1Gi" for i in range(6000)},
}


@on_node(METRICS)
def giant_annotations_stay_small_in_log_and_events(a, node):
    """A tenant may write 256 KiB into each of its pods, past the webhook by pods/status or in an outage."""
    for n, annotations in enumerate(GIANT.values(), 1):
        node.allocate(f"giant{n}", n, 10, 0)
        node.api.pods[-1]["metadata"]["annotations"] = annotations
    node.start()
    wait_for("Events", lambda: len({e["involvedObject"]["name"] for e in node.api.events}) == len(GIANT))
    assert max(len(e["message"]) for e in node.api.events) <= 1024, node.api.events
    assert (a.dir / "log").stat().st_size < 20_000
    assert all(ord(c) >= 32 for e in node.api.events for c in e["message"])


@on_node("metrics: {listen: '127.0.0.1:0', authentication: kubernetes}\n")
def slow_clients_of_the_agents_https(a, node):
    node.start()
    withstands(metrics_port(a), tls=True)


if __name__ == "__main__":
    sys.exit(run())
