"""A control plane for control_plane_test.py: etcd, API server, schedulers, kwok, extender and node fleet."""

import collections
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
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from harness import Failed, wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "webhook"))
from apiserver import bound as bound_to_us
from apiserver import free_port, skip_without_programs
from chart_rig import one, render  # skips where helm is missing

HERE = pathlib.Path(__file__).resolve().parent
CARDS = 8  # of a node


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

    def start_scheduler(self, name, extender=True, ignorable=False, claims=False):
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
                *("scheduler.mode=cluster", f"scheduler.port={self.ext}"),
                *(f"scheduler.ignorable={str(ignorable).lower()}", f"scheduler.claims={str(claims).lower()}"),
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
        def still_running():
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise Failed(f"{name} has ended with status {process.returncode}")

        wait_for(what, condition, seconds, pause, ignored=OSError, while_waiting=still_running)

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
