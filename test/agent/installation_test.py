#!/usr/bin/env python3
"""kubectl-sluice on clusters where the chart was installed under other names, with a stand-in for kubectl.

installation_test.py BIN_DIR
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
VERSION = (pathlib.Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()

KUBECTL = r"""#!/usr/bin/env python3
import json, os, sys
cluster = json.load(open(os.environ["CLUSTER"]))
a = sys.argv[1:]
if a[:2] == ["get", "--raw"]:
    print(json.dumps(cluster["status"]))
elif "mutatingwebhookconfigurations" in a and cluster["webhooks"] is None:
    sys.exit("Error from server (Forbidden): you may not list webhook configurations")
elif "mutatingwebhookconfigurations" in a:
    print(json.dumps({"items": cluster["webhooks"]}))
elif a[:2] == ["get", "pods"]:
    wanted = dict(x.split("=") for x in a[a.index("-l") + 1].split(",")) if "-l" in a else None
    chosen = [p for p in cluster["pods"] if wanted is None or wanted.items() <= p["metadata"]["labels"].items()]
    print(json.dumps({"items": chosen}))
elif a[:2] == ["get", "pod"]:
    space = a[a.index("-n") + 1] if "-n" in a else "default"
    print(json.dumps({"metadata": {"name": a[2], "namespace": space}, "spec": {"nodeName": cluster["node"]}}))
elif a[0] == "exec":
    print("ran", *a[1:])
    if cluster["tool"]:
        print(cluster["tool"], file=sys.stderr)
        print("command terminated with exit code 2", file=sys.stderr)
        sys.exit(2)
elif a[:2] == ["get", "nodes"]:
    node = {"name": "n1", "annotations": {"sluice.dev/gpus": "[]"}}
    print(json.dumps({"items": [{"metadata": node, "status": {"allocatable": cluster["units"]}}]}))
elif a[:2] == ["get", "node"]:
    node = {"annotations": {"sluice.dev/gpus": "[]"}}
    print(json.dumps({"metadata": node, "status": {"allocatable": cluster["units"]}}))
elif a[:2] == ["get", "resourceslices"] and cluster.get("slices") is not None:
    print(json.dumps({"items": cluster["slices"]}))
elif a[:2] == ["get", "resourceclaims"] and cluster.get("slices") is not None:
    print(json.dumps({"items": []}))
elif a[0] == "get" and a[1].startswith("resource"):
    sys.exit("error: the server doesn't have a resource type " + a[1])
else:
    sys.exit("unexpected: " + " ".join(a))
"""


def webhook(name, labels, hook="mutate.sluice.dev"):
    return {
        "metadata": {"name": name, "labels": labels},
        "webhooks": [{"name": hook, "clientConfig": {"caBundle": "x"}}],
    }


def pod(name, component):
    return {
        "metadata": {
            "name": component + "-0",
            "namespace": "gpu",
            "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/component": component},
        },
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "metrics", "containerPort": 9402}]}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


class Installation(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        kubectl = pathlib.Path(self.dir.name, "kubectl")
        kubectl.write_text(KUBECTL)
        kubectl.chmod(0o755)

    def run_on(self, name, webhooks, *command, units="100", node="n1", tool="", slices=None, driver=None, **status):
        cluster = {
            "slices": slices,
            "webhooks": webhooks,
            "pods": [pod(name, c) for c in ("node", "webhook")] + [pod("another-product", "node")],
            "units": {"sluice.dev/gpu-percent": units},
            "node": node,
            "tool": tool,
            "status": {"agentVersion": VERSION, "gpus": [{"uuid": "GPU-1", "model": "H100"}], **status},
        }
        if driver is not None:
            ready = {"name": "dra-driver", "ready": driver}
            cluster["pods"][0]["status"]["containerStatuses"] = [ready]
        path = pathlib.Path(self.dir.name, "cluster.json")
        path.write_text(json.dumps(cluster))
        env = {**os.environ, "CLUSTER": str(path), "PATH": self.dir.name + ":" + os.environ["PATH"]}
        return subprocess.run([BIN / "kubectl-sluice", *command], env=env, capture_output=True, text=True)

    def test_names_of_the_chart_are_found(self):
        others = [webhook("istio", {}, "inject.istio.io")]
        for name, configuration in {
            "sluice": webhook("sluice", {"app.kubernetes.io/name": "sluice"}),
            "gpu-share": webhook("release-gpu-share", {"app.kubernetes.io/name": "gpu-share"}),
            "bare": webhook("bare", {}),
        }.items():
            for command in (["doctor"], ["top", "--once"], ["status"]):
                with self.subTest(f"{name}: {command[0]}"):
                    r = self.run_on(name, [*others, configuration], *command)
                    self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
                    self.assertNotIn("another-product", r.stdout)

    def test_without_the_right_to_list_webhooks_the_default_name_holds(self):
        r = self.run_on("sluice", None, "top", "--once")
        self.assertEqual(r.returncode, 0, r.stderr)
        r = self.run_on("gpu-share", None, "top", "--once")
        self.assertEqual(r.returncode, 1)
        self.assertIn("app.kubernetes.io/name=sluice", r.stderr)

    def test_doctor_says_why_no_unit_is_offered(self):
        installed = [webhook("sluice", {"app.kubernetes.io/name": "sluice"})]
        why = "no NVML; the node has 2 NVIDIA GPU(s)"
        r = self.run_on("sluice", installed, "doctor", units="0", gpus=[], offerProblem=why)
        self.assertEqual(r.returncode, 1)
        self.assertIn("no sluice.dev/gpu-percent is offered: " + why, r.stdout)
        r = self.run_on("sluice", installed, "doctor", units="0", offerProblem="GPU GPU-1: no libcuda")
        self.assertIn("1 GPU(s), and no sluice.dev/gpu-percent is offered: GPU GPU-1: no libcuda", r.stdout)
        r = self.run_on("sluice", installed, "doctor", offerProblem="GPU GPU-2: MIG is on")
        self.assertEqual(r.returncode, 0)
        self.assertIn("warn  node n1: not offered: GPU GPU-2: MIG is on", r.stdout)
        r = self.run_on("sluice", installed, "doctor", units="0", gpus=[])
        self.assertIn("node n1: no GPU", r.stdout)

    def test_park_and_wake_run_beside_the_agent_of_the_pods_node(self):
        installed = [webhook("release", {"app.kubernetes.io/name": "gpu-share"})]
        r = self.run_on("gpu-share", installed, "park", "trainer", "-n", "team", "-c", "main", "--timeout", "5")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("ran -n gpu node-0 -c agent -- sluice park team/trainer/main --timeout 5", r.stdout)
        r = self.run_on("gpu-share", installed, "wake", "trainer")
        self.assertEqual(r.stdout, "ran -n gpu node-0 -c agent -- sluice wake default/trainer\n", r.stderr)
        # The tool's own sentence and status; a pod that is on no node, or on one without an agent.
        r = self.run_on("gpu-share", installed, "wake", "trainer", tool="sluice: id: 'default/trainer' is unknown")
        self.assertEqual((r.returncode, r.stderr), (2, "sluice: id: 'default/trainer' is unknown\n"))
        r = self.run_on("gpu-share", installed, "park", "trainer", node="")
        self.assertEqual((r.returncode, r.stderr), (1, "sluice: park: pod default/trainer is on no node yet\n"))
        r = self.run_on("gpu-share", installed, "park", "trainer", node="n2")
        self.assertEqual((r.returncode, r.stderr), (1, "sluice: no agent runs on node 'n2'\n"))

    def test_doctor_knows_nodes_that_offer_their_cards_through_dra(self):
        installed = [webhook("sluice", {"app.kubernetes.io/name": "sluice"})]
        card = {"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-1"}}, "allowMultipleAllocations": True}
        spec = {"driver": "sluice.dev", "nodeName": "n1", "devices": [card]}
        spec["pool"] = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        slices = [{"metadata": {"name": "n1-sluice.dev"}, "spec": spec}]
        r = self.run_on("sluice", installed, "doctor", units="0", slices=slices, driver=True)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertIn("ok    node n1: 1 GPU(s) in its ResourceSlice, 0 claim(s)", r.stdout)
        self.assertNotIn("gpu-percent is offered", r.stdout)
        r = self.run_on("sluice", installed, "doctor", units="0", slices=[], driver=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn("its DRA driver is not ready", r.stdout)
        self.assertIn("no ResourceSlice of sluice.dev", r.stdout)
        self.assertIn("fix: kubectl -n gpu logs node-0 -c dra-driver", r.stdout)
        r = self.run_on("sluice", installed, "doctor", slices=slices)
        self.assertIn("device plugin and DRA driver offer the same cards", r.stdout)
        self.assertEqual(r.returncode, 1)
        r = self.run_on("sluice", installed, "doctor", units="0", driver=True)
        self.assertIn("DRA: error: the server doesn't have a resource type resourceslices; not checked", r.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
