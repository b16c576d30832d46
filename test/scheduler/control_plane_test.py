#!/usr/bin/env python3
"""sluice-extender between the real API server and the real kube-scheduler, 200 nodes that exist as objects only.

Starts an etcd, an API server and two schedulers of its own on free ports, as an ordinary user, in a temporary folder. A pod that is bound
is judged by counting: with the extender no card may be promised more than it has; what the default scheduler alone does with the same
pods is printed beside it. Exit status 4: the programs are not there.
"""
import collections
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
NODES, CARDS, PODS = int(os.environ.get("NODES", "200")), 8, int(os.environ.get("PODS", "2200"))
RESOURCE = "sluice.dev/gpu-percent"


def programs():
    where = subprocess.run([HERE.parent / "cluster/tools/build", "--where"], capture_output=True, text=True)
    for folder in (os.environ.get("SLUICE_CLUSTER_BIN", ""), where.stdout.strip()):
        if folder and all((pathlib.Path(folder) / name).exists() for name in ("etcd", "kube-apiserver", "kube-scheduler")):
            return pathlib.Path(folder)
    print("skipped: no etcd, kube-apiserver and kube-scheduler (test/cluster/cluster build makes them): "
          "the extender was NOT tried on the real scheduler", file=sys.stderr)
    sys.exit(4)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Plane:
    def __init__(self, extender):
        self.bin, self.extender = programs(), extender
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-plane-"))
        self.running = []

    def start(self, name, *args):
        log = open(self.dir / f"{name}.log", "w")
        self.running.append(subprocess.Popen([str(a) for a in args], stdout=log, stderr=subprocess.STDOUT, cwd=self.dir))

    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.dir, check=True, capture_output=True)

    def up(self):
        etcd, peer, self.api, self.ext = (free_port() for _ in range(4))
        self.openssl("genrsa", "-out", "sa.key", "2048")
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
                     "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
        (self.dir / "tokens").write_text("token,admin,1,system:masters\n")
        (self.dir / "kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.api}",
                                                   "certificate-authority": str(self.dir / "ca.crt")}}],
            "users": [{"name": "u", "user": {"token": "token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}))
        self.start("etcd", self.bin / "etcd", "--data-dir", "etcd", "--unsafe-no-fsync",
                   "--listen-client-urls", f"http://127.0.0.1:{etcd}", "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
                   "--listen-peer-urls", f"http://127.0.0.1:{peer}")
        self.start("api", self.bin / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}", "--secure-port", self.api,
                   "--bind-address", "127.0.0.1", "--tls-cert-file", "ca.crt", "--tls-private-key-file", "ca.key",
                   "--token-auth-file", "tokens", "--authorization-mode", "AlwaysAllow", "--service-account-issuer", "https://x",
                   "--service-account-key-file", "sa.key", "--service-account-signing-key-file", "sa.key",
                   "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition", "--profiling=false")
        self.wait("the API server", lambda: self.call("GET", "/readyz", raw=True))
        self.start("extender", self.extender, "--kubeconfig", "kubeconfig", "--listen", f"127.0.0.1:{self.ext}")
        for name, extenders in (("default-scheduler", []), ("sluice-scheduler", [{
                "urlPrefix": f"http://127.0.0.1:{self.ext}", "filterVerb": "filter", "prioritizeVerb": "prioritize",
                "bindVerb": "bind", "weight": 100, "nodeCacheCapable": True, "httpTimeout": "10s",
                "managedResources": [{"name": RESOURCE, "ignoredByScheduler": False}]}])):
            (self.dir / f"{name}.yaml").write_text(json.dumps({
                "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": "kubeconfig", "qps": 500, "burst": 500},
                "profiles": [{"schedulerName": name}], "extenders": extenders}))
            self.start(name, self.bin / "kube-scheduler", "--config", f"{name}.yaml", "--secure-port", 0)

    def call(self, method, path, body=None, raw=False, kind="application/json"):
        import ssl
        context = ssl.create_default_context(cafile=str(self.dir / "ca.crt"))
        request = urllib.request.Request(f"https://127.0.0.1:{self.api}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": "Bearer token", "Content-Type": kind})
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            text = answer.read()
        return text if raw else json.loads(text)

    def wait(self, what, condition, seconds=240):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.3)
        raise SystemExit(f"waited {seconds} s for {what}; logs are in {self.dir}")

    def down(self, keep):
        for process in reversed(self.running):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        if not keep:
            shutil.rmtree(self.dir)


def make_nodes(plane):
    for i in range(NODES):
        name = f"n{i:04}"
        cards = [{"uuid": f"GPU-{name}-{j}", "model": "T", "memory": 1 << 30, "free": 100, "numa": j // 4} for j in range(CARDS)]
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "annotations": {"sluice.dev/gpus": json.dumps(cards)}}})
        amounts = {"cpu": "96", "memory": "384Gi", "pods": "110", RESOURCE: str(100 * CARDS)}
        plane.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}},
            kind="application/merge-patch+json")


def make_pods(plane, namespace, scheduler):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    draw = random.Random(7)
    # The sizes of the published trace, roughly; more in all than the cluster has.
    sizes = [100] * 6 + [81] * 2 + [47] * 2 + [32, 65, 23, 46, 59, 16, 55]
    for i in range(PODS):
        units = draw.choice(sizes) if i % 50 else 200
        plane.call("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": f"p{i}"}, "spec": {
            "schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none", "resources": {
                "limits": {RESOURCE: str(units), "cpu": "1"}}}]}})


def settled(plane, namespace):
    """All pods are bound or have been told why not."""
    pods = plane.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return all(p["spec"].get("nodeName") or any(c.get("reason") == "Unschedulable" for c in p["status"].get("conditions", []))
               for p in pods)


def units_of(pod):
    return int(pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE])


def refused_without_promises(pods):
    """What the device plugin's best fit would refuse, node by node, in the order of creation."""
    free = collections.defaultdict(lambda: [100] * CARDS)
    refused = 0
    for pod in sorted(pods, key=lambda p: int(p["metadata"]["name"][1:])):
        cards, units = free[pod["spec"]["nodeName"]], units_of(pod)
        if units > 100:
            chosen = [i for i, f in enumerate(cards) if f == 100][:units // 100]
            fits = len(chosen) == units // 100
        else:
            chosen = sorted((f, i) for i, f in enumerate(cards) if f >= units)[:1]
            chosen, fits = [i for _, i in chosen], bool(chosen)
        refused += not fits
        for i in chosen if fits else []:
            cards[i] -= min(100, units)
    return refused


def main():
    plane = Plane(sys.argv[1])
    good = False
    try:
        plane.up()
        make_nodes(plane)
        plane.wait("the extender", lambda: f"sluice_extender_nodes {NODES}\n" in urllib.request.urlopen(
            f"http://127.0.0.1:{plane.ext}/metrics").read().decode())
        start = time.monotonic()
        make_pods(plane, "with", "sluice-scheduler")
        plane.wait("the pods", lambda: settled(plane, "with"))
        seconds = time.monotonic() - start
        pods = plane.call("GET", "/api/v1/namespaces/with/pods")["items"]
        bound = [p for p in pods if p["spec"].get("nodeName")]
        promised = collections.Counter()
        for pod in bound:
            placement = json.loads(pod["metadata"]["annotations"]["sluice.dev/placement"])["c"]
            assert len(placement) == max(1, units_of(pod) // 100), pod["metadata"]
            for card in placement:
                assert card.startswith(f"GPU-{pod['spec']['nodeName']}-"), pod["metadata"]
                promised[card] += min(100, units_of(pod))
        over = {card: units for card, units in promised.items() if units > 100}
        assert not over, over
        assert len(bound) > PODS // 2, len(bound)
        waiting = [p for p in pods if not p["spec"].get("nodeName")]
        for pod in waiting[:1]:
            print("a pod that waits:", [c["message"] for c in pod["status"]["conditions"]][0])
        with open(f"/proc/{plane.running[2].pid}/status") as status:
            resident = [line.split()[1] for line in status if line.startswith("VmRSS")][0]
        print(f"with the extender: {len(bound)} of {len(pods)} pods bound in {seconds:.0f} s, no card promised twice, "
              f"{sum(promised.values()) / NODES / CARDS:.1f} % of the GPUs; extender {int(resident) // 1024} MiB")
        plane.call("DELETE", "/api/v1/namespaces/with/pods")
        plane.wait("an empty cluster", lambda: not plane.call("GET", "/api/v1/pods")["items"])
        make_pods(plane, "without", "default-scheduler")
        plane.wait("the pods", lambda: settled(plane, "without"))
        pods = [p for p in plane.call("GET", "/api/v1/namespaces/without/pods")["items"] if p["spec"].get("nodeName")]
        refused = refused_without_promises(pods)
        print(f"without: {len(pods)} pods bound, {refused} of them on nodes whose cards cannot hold them")
        good = True
    finally:
        plane.down(keep=not good)


if __name__ == "__main__":
    main()
