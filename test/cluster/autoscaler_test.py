#!/usr/bin/python3
"""A node autoscaler on the real control plane: Karpenter, with its provider of simulated nodes, makes nodes for shares.

Karpenter and kwok run beside the cluster, as programs. The instance type is that of docs/operate/queues.md.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import product as p
import queues as q

SPACE = f"users-{os.getpid()}"
PAGE = p.ROOT / "docs" / "operate" / "queues.md"
GPUS = "sluice.dev/gpus"


def instance_types():
    """The page's example, as it stands."""
    for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if "offerings" in block:
            return block
    raise p.Failed(f"{PAGE}: no example of an instance type")


def pools():
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "gpus"}}
    template = {
        "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}],
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "gpus"},
        "expireAfter": "Never",
    }
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "gpus"},
        "spec": {
            "template": {"spec": template},
            "limits": {q.UNITS: 400},
            # An empty node goes at once, so that each test begins with none.
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"},
        },
    }
    return node_class, pool


class Autoscaler(unittest.TestCase):
    programs = ()

    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        p.scheduler_image()
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        p.install(
            *("--set", "scheduler.mode=own", "--set", "scheduler.policy=best-fit"),
            *("--set", "scheduler.image.repository=sluice.test/kube-scheduler"),
        )
        p.wait(120, "the node to offer units", lambda: p.offered() == 200)
        p.namespace(SPACE)
        cls.start()

    @classmethod
    def start(cls):
        module = p.run(q.TOOLS, "--queues", "--module", "sigs.k8s.io/karpenter").stdout.strip()
        for folder in ("pkg/apis/crds", "kwok/apis/crds"):
            p.kubectl("apply", "--server-side", "-f", f"{module}/{folder}")
        p.kubectl("wait", "--for=condition=Established", "crd", "nodepools.karpenter.sh", "--timeout=60s")
        cls.folder = tempfile.TemporaryDirectory()
        types = pathlib.Path(cls.folder.name) / "instance-types.json"
        types.write_text(instance_types())
        more = {
            "KUBERNETES_MIN_VERSION": "1.19.0-0",
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": "0",
            "HEALTH_PROBE_PORT": "0",
            "INSTANCE_TYPES_FILE_PATH": str(types),
        }
        kwok = p.run("bash", "-c", "command -v kwok").stdout.strip()
        selector = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
        cls.programs = [
            cls.program("kwok", [kwok, "--kubeconfig", os.environ["KUBECONFIG"], selector], {}),
            cls.program("karpenter", [q.programs() / "karpenter"], more),
        ]
        for manifest in pools():
            p.apply(manifest)
        ready = lambda: (
            "True"
            in p.kubectl("get", "nodepool", "gpus", "-o", 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')
        )
        p.wait(120, "Karpenter to accept the pool", ready)

    @classmethod
    def program(cls, name, command, more):
        # Its parent's death ends it too.
        bound = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        with open(pathlib.Path(cls.folder.name) / f"{name}.log", "w") as log:
            return subprocess.Popen(bound, env={**os.environ, **more}, stdout=log, stderr=log)

    @classmethod
    def tearDownClass(cls):
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        p.kubectl("delete", "nodepools,nodeclaims", "--all", "--wait=true", "--timeout=60s", check=False)
        for program in cls.programs:
            program.kill()
            program.wait()
        for node in made():
            p.kubectl("delete", "node", node["metadata"]["name"], "--wait=false", check=False)
        names = [c["metadata"]["name"] for c in p.get("crds")["items"]]
        p.kubectl("delete", "crd", *[n for n in names if "karpenter" in n], "--wait=false", check=False)
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait")
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)
        if cls.programs:
            cls.folder.cleanup()

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            print(p.kubectl("-n", SPACE, "get", "pods,events", "-o", "wide", check=False))
            print(p.kubectl("get", "nodes,nodeclaims", "-o", "wide", check=False))
            log = (pathlib.Path(self.folder.name) / "karpenter.log").read_text()
            print("\n".join(log.splitlines()[-20:]))
        p.kubectl("-n", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        p.wait(120, "Karpenter to take its nodes away", lambda: not made())

    def share(self, name, fraction):
        self.assertEqual(p.apply(p.idle_pod(name, {"sluice.dev/gpu-fraction": fraction}), SPACE).returncode, 0)

    def running(self, *names):
        for name in names:
            p.wait(120, f"{name} to run", lambda name=name: p.phase(name, SPACE) == "Running")

    def test_a_share_without_room_brings_a_node(self):
        for i in range(4):
            self.share(f"old-{i}", "0.5")
        self.running(*(f"old-{i}" for i in range(4)))
        self.share("more", "0.5")
        p.wait(90, "a node for the share", made)
        claim = p.get("nodeclaims")["items"][0]
        self.assertEqual(claim["spec"]["resources"]["requests"][q.UNITS], "50")
        node = p.wait(60, "its units", lambda: [n for n in made() if units(n)])[0]
        self.assertEqual(units(node), 200)
        # The chart's scheduler binds to cards, and these are told by the node's agent, whose part is played here.
        name = node["metadata"]["name"]
        cards = json.loads(p.get("node", os.environ["CLUSTER_NODE"])["metadata"]["annotations"][GPUS])
        for i, card in enumerate(cards):
            card.update(uuid=f"GPU-made-{i}", free=100)
            card.pop("pods", None)
        p.kubectl("annotate", "node", name, f"{GPUS}={json.dumps(cards)}")
        self.running("more")
        pod = p.get("-n", SPACE, "pod", "more")
        self.assertEqual(pod["spec"]["nodeName"], name)
        self.assertIn("GPU-made-", pod["metadata"]["annotations"]["sluice.dev/placement"])
        self.assertEqual(len(made()), 1)

    def test_no_node_while_the_sum_suffices(self):
        # 80 units are free in all, 40 on each card. The page says that an autoscaler does nothing for a pod of 60.
        for i in range(2):
            self.share(f"big-{i}", "0.6")
        self.running("big-0", "big-1")
        self.share("waits", "0.6")
        chosen = "--field-selector=involvedObject.name=waits,reason=Nominated"
        told = lambda: [e["message"] for e in p.get("-n", SPACE, "events", chosen)["items"]]
        self.assertIn(os.environ["CLUSTER_NODE"], p.wait(90, "Karpenter's opinion", told)[0])
        line = lambda: [x for x in p.plugin("doctor", check=False).stdout.splitlines() if "no card fits" in x]
        self.assertIn("the sum fits, no card fits: 1 pod", p.wait(60, "doctor's line", line)[0])
        self.assertEqual((made(), p.phase("waits", SPACE)), ([], "Pending"))


def made():
    return p.get("nodes", "-l", "karpenter.sh/nodepool=gpus")["items"]


def units(node):
    return int(node["status"].get("allocatable", {}).get(q.UNITS, 0))


if __name__ == "__main__":
    p.require()
    unittest.main()
