#!/usr/bin/env python3
"""Webhook and extender at 5,000 nodes of 20 KB and 20,000 pods of 3 KB, in the memory that the chart gives them.

large_cluster_test.py SLUICE_WEBHOOK SLUICE_EXTENDER [--nodes N] [--pods N]

The API server is a fake one (test/lib/fake_apiserver.py). Each daemon starts cold, in a memory cgroup where one can be
made; its peak resident size is checked in any case. In between page tokens expire, watches end, and one gets 410.
"""

import argparse
import base64
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import large_cluster
from fake_apiserver import PARTIAL, FakeApiServer
from harness import Failed, wait_for
from memory_limit import MemoryGroup, peak_mib

WEBHOOK_MIB, EXTENDER_MIB = 64, 128
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
RESOURCES = "/apis/resource.k8s.io/v1/"
SLICES, CLAIMS, CLASSES = (RESOURCES + kind for kind in ("resourceslices", "resourceclaims", "deviceclasses"))
options = None


def http(url, body=None, context=None):
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def metric(text, name):
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else None


class Daemon:
    """A daemon under its limit. `what` names it in messages."""

    def __init__(self, what, limit_mib, command, folder):
        self.what, self.limit, self.log = what, limit_mib, folder / f"{what}.log"
        self.group = MemoryGroup(what, limit_mib << 20)
        self.process = self.group.start(command, stderr=self.log.open("w"))

    def wait(self, about, condition, seconds=120):
        def still_running():
            if self.process.poll() is not None:
                raise Failed(f"{self.what} has ended with status {self.process.returncode}")

        try:
            wait_for(f"{self.what}: {about}", condition, seconds, pause=0.05, while_waiting=still_running)
        except Failed as failed:
            raise Failed(f"{failed}\n{self.log.read_text()}") from None

    def check_peak(self, when):
        peak = peak_mib(self.process.pid)
        limited = "in a cgroup" if self.group.made else "no cgroup"
        print(f"{self.what}, {when}: peak {peak:.1f} MiB of {self.limit} ({limited})", flush=True)
        if peak > self.limit:
            raise AssertionError(f"{self.what}, {when}: {peak:.1f} MiB were resident, accepted: {self.limit}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.group.close()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-large-"))
        self.addCleanup(shutil.rmtree, self.folder)
        kinds = {
            NODES: large_cluster.make_nodes(options.nodes),
            PODS: large_cluster.make_pods(options.pods, options.nodes),
            SLICES: large_cluster.make_slices(options.nodes),
            CLAIMS: large_cluster.make_claims(options.pods, options.nodes),
            CLASSES: large_cluster.make_classes(),
        }
        self.server = FakeApiServer(kinds, expire_pages=1)
        self.addCleanup(self.server.close)
        self.kubeconfig = self.server.kubeconfig(self.folder / "kubeconfig")

    def node(self, index, partial, **changes):
        text = self.server.kinds[NODES].make(index, partial)
        for old, new in changes.items():
            text = text.replace(old, new)
        return text

    def check_requests(self, path, partial):
        asked = self.server.asked(path)
        self.assertEqual([r for r in asked if (PARTIAL in r[2]) != partial], [])
        for request in asked:
            paged = "limit" in request[1] or "continue" in request[1]
            watch = request[1].get("watch")
            # The list after an expired token is in one page, which cannot expire.
            self.assertTrue(paged or watch or request is asked[2], request)
        for request in self.server.asked(path, watch="true"):
            self.assertEqual(request[1]["allowWatchBookmarks"], "true")

    def test_webhook(self):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            + ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        (self.folder / "config.yaml").write_text("{}\n")
        ports = self.folder / "ports"
        flags = ["--cert", "cert.pem", "--key", "key.pem", "--kubeconfig", self.kubeconfig, "--port-file", ports]
        listen = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--config", "config.yaml"]
        flags = [self.folder / f if f in ("cert.pem", "key.pem", "config.yaml") else f for f in flags + listen]
        webhook = Daemon("webhook", WEBHOOK_MIB, [options.webhook, *flags], self.folder)
        self.addCleanup(webhook.stop)
        webhook.wait("its ports", ports.exists)
        https, plain = ports.read_text().split()
        trust = ssl.create_default_context(cafile=str(self.folder / "cert.pem"))
        trust.check_hostname = False

        def known():
            return metric(http(f"http://127.0.0.1:{plain}/metrics"), "sluice_webhook_gpu_nodes")

        def decide(node):
            """The units for 20 GiB on this node alone; None: denied."""
            pod = {
                "metadata": {"name": "p", "annotations": {"sluice.dev/gpu-memory": "20Gi"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "containers": [{"name": "main", "image": "x"}],
                },
            }
            request = {"uid": "1", "operation": "CREATE", "namespace": "team", "object": pod}
            request["resource"] = {"group": "", "version": "v1", "resource": "pods"}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            answer = http(f"https://127.0.0.1:{https}/mutate", json.dumps(review).encode(), trust)
            response = json.loads(answer)["response"]
            if not response["allowed"]:
                self.assertIn("match none of the", response["status"]["message"])
                return None
            found = re.search(r'sluice.dev/gpu-percent":"?(\d+)', base64.b64decode(response["patch"]).decode())
            return int(found.group(1))

        webhook.wait("all nodes", lambda: known() == options.nodes)
        self.assertEqual(self.server.expire_pages, 0)  # a page token expired, and the list was read anew
        last = options.nodes - 1
        self.assertEqual(decide(f"node-{last:05d}"), 25)
        webhook.check_peak("after a cold start")
        # A change, and the end of a watch, without another list.
        webhook.wait("a watch", lambda: self.server.kinds[NODES].watchers)
        self.server.change(NODES, last, self.node(last, True, **{str(80 << 30): str(40 << 30)}))
        webhook.wait("the changed node", lambda: decide(f"node-{last:05d}") == 50)
        lists = len(self.server.asked(NODES, limit="500"))
        watches = len(self.server.asked(NODES, watch="true"))
        self.server.end_watches(NODES)
        webhook.wait("another watch", lambda: len(self.server.asked(NODES, watch="true")) > watches)
        self.server.change(NODES, 0, self.node(0, True), "DELETED")
        webhook.wait("the deletion", lambda: known() == options.nodes - 1)
        self.assertEqual(len(self.server.asked(NODES, limit="500")), lists)
        # Changes that no watch can report: 410, then a list.
        self.server.change_unseen(NODES, 1, None)
        webhook.wait("another list", lambda: known() == options.nodes - 2)
        self.assertIsNone(decide("node-00001"))
        self.assertEqual(decide("node-00002"), 25)
        webhook.check_peak("after another list")
        self.check_requests(NODES, partial=True)

    def check_claims(self, extender, url, names, figure):
        """Nodes are scored for a pod with a claim: each pod of the list holds half of a card."""
        extender.wait("the claims", lambda: figure("allocated_claims") == options.pods)
        self.assertEqual(figure("claim_cards"), 8 * options.nodes)
        extender.wait("the slices", lambda: figure("claim_free_gpus") == 8 * options.nodes - options.pods / 2)
        server_claims = self.server.kinds[CLAIMS]
        made = json.dumps(large_cluster.claim("new", "new"))
        spec = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "new"}]}
        pod = {"metadata": {"name": "new", "namespace": "team", "uid": "new"}, "spec": spec}
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        extender.wait("a watch of claims", lambda: server_claims.watchers)
        self.assertEqual(http(f"{url}/prioritize-any", body), "[]")  # the claim does not exist yet
        self.server.change(CLAIMS, options.pods, made, "ADDED")
        extender.wait("the new claim", lambda: http(f"{url}/prioritize-any", body) != "[]")
        begin = time.monotonic()
        scores = json.loads(http(f"{url}/prioritize-any", body))
        print(f"extender: {1000 * (time.monotonic() - begin):.0f} ms for scores of {len(scores)} nodes", flush=True)
        self.assertEqual([s["Host"] for s in scores], names)
        self.assertEqual(sum(s["Score"] == 10 for s in scores), 1)
        extender.check_peak("with claims")

    def test_extender(self):
        config = self.folder / "extender.yaml"
        lines = ("listen: 127.0.0.1:0", "metricsListen: 127.0.0.1:0", f"kubeconfig: {self.kubeconfig}", "claims: true")
        config.write_text("\n".join(lines) + "\n")
        extender = Daemon("extender", EXTENDER_MIB, [options.extender, "--config", config], self.folder)
        self.addCleanup(extender.stop)
        extender.wait("its port", lambda: "listening" in extender.log.read_text())
        port = re.search(r"\bport=(\d+)", extender.log.read_text()).group(1)
        url = f"http://127.0.0.1:{port}"

        def figure(name):
            return metric(http(f"{url}/metrics"), "sluice_extender_" + name)

        def ask(units, nodes, containers=1):
            resources = {"limits": {"sluice.dev/gpu-percent": str(units)}}
            spec = {"containers": [{"name": f"c{i}", "resources": resources} for i in range(containers)]}
            pod = {"metadata": {"name": "p", "namespace": "team", "uid": "new"}, "spec": spec}
            return json.loads(http(f"{url}/filter", json.dumps({"Pod": pod, "NodeNames": nodes}).encode()))

        names = [f"node-{i:05d}" for i in range(options.nodes)]
        extender.wait("the cluster", lambda: http(f"{url}/readyz") == "ok\n")
        extender.check_peak("after a cold start")
        self.assertEqual(self.server.expire_pages, 0)
        self.assertEqual(figure("nodes"), options.nodes)
        self.assertEqual(figure("cards"), 8 * options.nodes)
        # Every card has 50 of 100 units free by its node's account, which does not name the node's pods yet: one on
        # each of the first cards.
        taken = options.pods // options.nodes
        self.assertEqual(ask(50, names)["NodeNames"], names)
        self.assertEqual(ask(51, names)["NodeNames"], [])
        self.assertEqual(ask(50, names, 8 - taken)["NodeNames"], names)
        self.assertEqual(ask(50, names, 9 - taken)["NodeNames"], [])
        self.check_claims(extender, url, names, figure)
        extender.wait("watches", lambda: all(kind.watchers for kind in self.server.kinds.values()))
        freed = self.node(7, False, **{'\\"free\\":50': '\\"free\\":100'})
        self.server.change(NODES, 7, freed)
        extender.wait("a change of a node", lambda: ask(51, names)["NodeNames"] == ["node-00007"])
        self.server.change_unseen(NODES, 7, self.node(7, False))
        extender.wait("another list", lambda: ask(51, names)["NodeNames"] == [])
        # Pods of the last node end while no watch runs.
        last = options.nodes - 1
        for index in range(last, options.pods, options.nodes):
            self.server.change_unseen(PODS, index, None)
        extender.wait("another list of pods", lambda: ask(50, names, 8)["NodeNames"] == [names[last]])
        extender.check_peak("after other lists")
        self.check_requests(NODES, partial=False)


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("webhook")
    parser.add_argument("extender")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    options = parser.parse_args()
    unittest.main(argv=sys.argv[:1], verbosity=2)


if __name__ == "__main__":
    main()
