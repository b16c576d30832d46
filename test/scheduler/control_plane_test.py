#!/usr/bin/python3
"""control_plane_test.py EXTENDER NODE-FLEET [PHASE...]: sluice-extender between the real API server and the real kube-scheduler.

The schedulers' configuration has the fragment that the chart renders for a cluster's own scheduler (scheduler.mode=cluster).

Each phase (with, without, faults) starts an etcd, an API server, schedulers and kwok of its own on free ports, as an ordinary
user, in a temporary folder: that is quicker than deleting ten thousand pods. Nodes are only objects. Behind each of them,
node_fleet.cc runs the device plugin's own allocation code, called by kubelet's rules, and admits pods in any order.

Asserts that with the extender no node refuses a pod, and that with the default scheduler alone, and the same pods, some do.
Then tests faults: two schedulers at once, 100 pods for the last cards, the extender stopped.

NODES and PODS in the environment set the scale (`make bench-cluster`: 1,000 and 10,000). Exit status 4: programs are missing.
"""

import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent / "webhook")]
from apiserver import bound as bound_to_us  # noqa: E402
from apiserver import free_port, skip_without_programs
from chart_test import one, render  # noqa: E402  (skips where helm is missing)

NODES, CARDS, PODS = int(os.environ.get("NODES", "200")), 8, int(os.environ.get("PODS", "2200"))
RESOURCE = "sluice.dev/gpu-percent"


class Plane:
    def __init__(self, extender, fleet, nodes):
        self.bin = pathlib.Path(skip_without_programs("etcd", "kube-apiserver", "kube-scheduler", "kwok"))
        self.extender, self.fleet, self.nodes = extender, fleet, nodes
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-plane-"))
        self.running = {}
        self.connections = threading.local()

    def start(self, name, *args):
        with open(self.dir / f"{name}.log", "a") as log:
            self.running[name] = subprocess.Popen(
                bound_to_us(*args), stdout=log, stderr=subprocess.STDOUT, cwd=self.dir
            )

    def stop(self, name):
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.dir, check=True, capture_output=True)

    def up(self):
        etcd, peer, self.api, self.ext = (free_port() for _ in range(4))
        self.openssl("genrsa", "-out", "sa.key", "2048")
        self.openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        )
        (self.dir / "tokens").write_text("token,admin,1,system:masters\n")
        (self.dir / "kubeconfig").write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "x",
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                "server": f"https://127.0.0.1:{self.api}",
                                "certificate-authority": str(self.dir / "ca.crt"),
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": "token"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        self.tls = ssl.create_default_context(cafile=str(self.dir / "ca.crt"))
        self.start(
            "etcd",
            self.bin / "etcd",
            "--data-dir",
            "etcd",
            "--unsafe-no-fsync",
            "--quota-backend-bytes",
            8 << 30,
            "--listen-client-urls",
            f"http://127.0.0.1:{etcd}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{etcd}",
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
        )
        self.start(
            "api",
            self.bin / "kube-apiserver",
            "--etcd-servers",
            f"http://127.0.0.1:{etcd}",
            "--secure-port",
            self.api,
            "--bind-address",
            "127.0.0.1",
            "--tls-cert-file",
            "ca.crt",
            "--tls-private-key-file",
            "ca.key",
            "--token-auth-file",
            "tokens",
            "--authorization-mode",
            "AlwaysAllow",
            "--service-account-issuer",
            "https://x",
            "--service-account-key-file",
            "sa.key",
            "--service-account-signing-key-file",
            "sa.key",
            "--disable-admission-plugins",
            "ServiceAccount,TaintNodesByCondition",
            "--profiling=false",
        )
        self.wait("the API server", lambda: self.call("GET", "/readyz", raw=True))
        self.start_extender()
        self.start(
            "kwok",
            self.bin / "kwok",
            "--kubeconfig",
            "kubeconfig",
            "--config",
            HERE / "kwok.yaml",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=0",
            "--server-address",
            f"127.0.0.1:{free_port()}",
        )

    def start_extender(self):
        self.start("extender", self.extender, "--kubeconfig", "kubeconfig", "--listen", f"127.0.0.1:{self.ext}")

    def start_scheduler(self, name, extender=True, ignorable=False):
        lines = [
            "apiVersion: kubescheduler.config.k8s.io/v1",
            "kind: KubeSchedulerConfiguration",
            "leaderElection: {leaderElect: false}",
            "clientConnection: {kubeconfig: kubeconfig, qps: 500, burst: 500}",
            f"profiles: [{{schedulerName: {name}}}]",
        ]
        if extender:
            # As a user does for a cluster's own scheduler: the chart's fragment is appended to its configuration.
            chart = render(
                "scheduler.mode=cluster", f"scheduler.port={self.ext}", f"scheduler.ignorable={str(ignorable).lower()}"
            )
            lines += [
                "percentageOfNodesToScore: 100",
                one(chart, "ConfigMap", "sluice-scheduler")["data"]["fragment.yaml"],
            ]
        (self.dir / f"{name}.yaml").write_text("\n".join(lines))
        self.start(name, self.bin / "kube-scheduler", "--config", f"{name}.yaml", "--secure-port", 0)

    def call(self, method, path, body=None, raw=False, kind="application/json"):
        for attempt in range(2):
            connection = getattr(self.connections, "one", None)
            if connection is None:
                connection = self.connections.one = http.client.HTTPSConnection(
                    "127.0.0.1", self.api, context=self.tls, timeout=60
                )
            try:
                connection.request(
                    method,
                    path,
                    None if body is None else json.dumps(body),
                    {"Authorization": "Bearer token", "Content-Type": kind},
                )
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                connection.close()
                self.connections.one = None
                if attempt or method == "POST":
                    raise
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return text if raw else json.loads(text)

    def wait(self, what, condition, seconds=300, pause=0.3):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except OSError:
                pass
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} has ended with status {process.returncode}")
            time.sleep(pause)
        raise SystemExit(f"timed out after {seconds} s waiting for {what}")

    def metrics(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.ext}/metrics", timeout=10).read().decode()
        return {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if not line.startswith("#")
        }

    def resident_mib(self, name):
        status = pathlib.Path(f"/proc/{self.running[name].pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

    def cpu_seconds(self, name):
        fields = pathlib.Path(f"/proc/{self.running[name].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def pods(self, namespace):
        items, more = [], ""
        while True:
            page = self.call("GET", f"/api/v1/namespaces/{namespace}/pods?limit=500{more}")
            items += page["items"]
            if not page["metadata"].get("continue"):
                return items
            more = "&continue=" + page["metadata"]["continue"]

    def fleet_counts(self):
        lines = (self.dir / "fleet.log").read_text().splitlines()
        last = [line for line in lines if line.startswith("bound ")][-1:]
        words = last[0].split() if last else []
        return collections.defaultdict(int, {words[i]: int(words[i + 1]) for i in range(0, len(words), 2)})

    def start_fleet(self, *flags):
        (self.dir / "fleet.log").write_text("")
        self.start("fleet", self.fleet, "run", "--kubeconfig", "kubeconfig", *flags)

    def make_nodes(self):
        subprocess.run(
            [self.fleet, "make", "--kubeconfig", self.dir / "kubeconfig", "--nodes", str(self.nodes)], check=True
        )
        self.wait("the extender", lambda: self.metrics()["sluice_extender_free_gpus"] == self.nodes * CARDS)
        self.wait(
            "kwok",
            lambda: all(
                any(c["type"] == "Ready" for c in n["status"].get("conditions", []))
                for n in self.call("GET", "/api/v1/nodes")["items"]
            ),
        )

    def down(self, good):
        for name in reversed(list(self.running)):
            self.stop(name)
        for log in [] if good else sorted(self.dir.glob("*.log")):
            print(f"== the end of {log.name}:", *log.read_text(errors="replace").splitlines()[-20:], sep="\n")
        shutil.rmtree(self.dir)


def condition(pod):
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})


def units_of(pod):
    return int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(RESOURCE, 0))


def settled(plane, namespace):
    """All pods are bound or have a reason why not, and all bound ones were admitted or refused."""
    counts, before = plane.fleet_counts(), getattr(plane, "counts", None)
    plane.counts = counts
    if counts != before or counts["writes"]:  # still changing: do not read ten thousand pods
        return False
    pods = plane.pods(namespace)
    bound = [p for p in pods if p["spec"].get("nodeName")]
    return (
        len(pods) == PODS
        and all(p["spec"].get("nodeName") or condition(p).get("reason") == "Unschedulable" for p in pods)
        and counts["admitted"] + counts["refused"] == len(bound)
    )


def no_card_reserved_twice(pods):
    reserved = collections.Counter()
    for pod in pods:
        if not pod["spec"].get("nodeName") or not units_of(pod):
            continue
        cards = json.loads(pod["metadata"]["annotations"]["sluice.dev/placement"])["main"]
        assert len(cards) == max(1, units_of(pod) // 100), pod["metadata"]
        for card in cards:
            assert card.startswith(f"GPU-{pod['spec']['nodeName']}-"), pod["metadata"]
            reserved[card] += min(100, units_of(pod))
    over = {card: units for card, units in reserved.items() if units > 100}
    assert not over, over
    return sum(reserved.values())


def run_mix(plane, namespace, scheduler, *flags):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    plane.start_fleet(*flags)
    start = time.monotonic()
    subprocess.run(
        [
            plane.fleet,
            "pods",
            "--kubeconfig",
            plane.dir / "kubeconfig",
            "--pods",
            str(PODS),
            "--namespace",
            namespace,
            "--scheduler",
            scheduler,
        ],
        check=True,
    )
    plane.wait("the pods", lambda: settled(plane, namespace), seconds=1500, pause=max(0.3, PODS / 2000))
    return time.monotonic() - start, plane.pods(namespace), plane.fleet_counts()


def with_extender(plane):
    plane.start_scheduler("sluice-scheduler")
    seconds, pods, counts = run_mix(plane, "with", "sluice-scheduler", "--extender")
    reserved = no_card_reserved_twice(pods)
    plane.wait(
        "the extender to have seen all that it bound", lambda: plane.metrics()["sluice_extender_reserved_pods"] == 0
    )
    metrics = plane.metrics()
    print(
        f"with the extender: {counts['bound']} of {PODS} pods bound in {seconds:.0f} s, {reserved / plane.nodes / CARDS:.1f} % of the GPUs "
        f"reserved, {metrics['sluice_extender_fragmented_gpus']:.1f} free ones fragmented; {counts['refused']} refused by their node, "
        f"while the order of admission differed from that of binding {counts['nodes-out-of-order']} times; extender: "
        f"{plane.resident_mib('extender'):.0f} MiB peak, {plane.cpu_seconds('extender'):.1f} s of CPU"
    )
    waiting = [p for p in pods if not p["spec"].get("nodeName")]
    for pod in waiting[:1]:
        print("a waiting pod:", condition(pod)["message"])
    assert counts["refused"] == 0, counts
    assert counts["bound"] > PODS * 0.9, counts
    assert counts["nodes-out-of-order"] > 0, counts
    assert plane.resident_mib("extender") <= 64


def without_extender(plane):
    plane.start_scheduler("default-scheduler", extender=False)
    seconds, pods, counts = run_mix(plane, "without", "default-scheduler")
    print(
        f"the default scheduler alone: {counts['bound']} of {PODS} pods bound in {seconds:.0f} s, {counts['refused']} refused by their node"
    )
    assert counts["refused"] > 0, counts
    failed = [p for p in pods if p["status"].get("phase") == "Failed"]
    assert len(failed) == counts["refused"] and all("sluice refuses" in p["status"]["message"] for p in failed)


def make_pod(plane, name, scheduler, units, node=None):
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {RESOURCE: str(units)}}}],
    }
    if node:
        spec["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                    ]
                }
            }
        }
    plane.call("POST", "/api/v1/namespaces/faults/pods", {"metadata": {"name": name}, "spec": spec})


def bound(plane, name):
    return plane.call("GET", f"/api/v1/namespaces/faults/pods/{name}")["spec"].get("nodeName")


def faults(plane):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "faults"}})
    plane.start_fleet("--extender")
    plane.start_scheduler("sluice-scheduler")
    plane.start_scheduler("second-scheduler")

    # Two schedulers at once, and 100 concurrent pods for the eight cards of one node.
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(
            pool.map(
                lambda i: make_pod(plane, f"last{i}", ("sluice-scheduler", "second-scheduler")[i % 2], 81, "n0003"),
                range(100),
            )
        )
    plane.wait(
        "all to be bound or to have a reason",
        lambda: all(
            p["spec"].get("nodeName") or condition(p).get("reason") == "Unschedulable" for p in plane.pods("faults")
        ),
    )
    pods = plane.pods("faults")
    no_card_reserved_twice(pods)
    assert sum("nodeName" in p["spec"] for p in pods) == CARDS
    for pod in pods:
        if "nodeName" not in pod["spec"]:
            assert "no single card has 81 units free, the largest has 19" in condition(pod)["message"], condition(pod)
    assert len({p["spec"]["schedulerName"] for p in pods if "nodeName" in p["spec"]}) >= 1
    plane.wait("admission", lambda: plane.fleet_counts()["admitted"] == CARDS)
    assert plane.fleet_counts()["refused"] == 0
    # One pod ends, and a waiting one gets its units.
    first = next(p for p in pods if "nodeName" in p["spec"])["metadata"]["name"]
    plane.call("DELETE", f"/api/v1/namespaces/faults/pods/{first}?gracePeriodSeconds=0")
    plane.wait("the next", lambda: plane.fleet_counts()["admitted"] == CARDS + 1)
    print("100 concurrent pods for the last 8 cards, two schedulers: 8 run, the others have a reason, and one follows")

    # The extender stopped: pods wait with a reason, or, with ignorable, are placed by the node's sum of units.
    plane.stop("extender")
    plane.start_scheduler("ignoring-scheduler", ignorable=True)
    make_pod(plane, "waiting", "sluice-scheduler", 30)
    make_pod(plane, "ignoring", "ignoring-scheduler", 30)
    plane.wait("the pod that does not need the extender", lambda: bound(plane, "ignoring"))
    plane.wait(
        "a reason",
        lambda: (
            "connection refused"
            in condition(plane.call("GET", "/api/v1/namespaces/faults/pods/waiting")).get("message", "")
        ),
    )
    assert not bound(plane, "waiting")
    assert "sluice.dev/placement" not in plane.call("GET", "/api/v1/namespaces/faults/pods/ignoring")["metadata"].get(
        "annotations", {}
    )
    plane.start_extender()
    plane.wait("the pod that waited", lambda: bound(plane, "waiting"))
    print(
        "extender stopped: one pod waited with a reason, the one with ignorable was placed by sums; extender back: the first is placed"
    )


PHASES = {"with": (with_extender, NODES), "without": (without_extender, NODES), "faults": (faults, 20)}


def main():
    for phase in sys.argv[3:] or PHASES:
        run, nodes = PHASES[phase]
        plane = Plane(*(pathlib.Path(program).resolve() for program in sys.argv[1:3]), nodes)
        good = False
        try:
            plane.up()
            plane.make_nodes()
            run(plane)
            good = True
        finally:
            plane.down(good)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
