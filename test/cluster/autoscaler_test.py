#!/usr/bin/python3
"""Node autoscalers on the real control plane: Karpenter and cluster-autoscaler make simulated nodes for shares.

They run beside the cluster, as programs, and kwok keeps their nodes ready. Instance type and template stand in
docs/operate/queues.md. cluster-autoscaler is not fetched here: SLUICE_CLUSTER_AUTOSCALER names a release's program.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import product as p
import queues as q
import yaml

SPACE = f"users-{os.getpid()}"
PAGE = p.ROOT / "docs" / "operate" / "queues.md"
GPUS = "sluice.dev/gpus"


def instance_types():
    """The page's example, as it stands."""
    for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if "offerings" in block:
            return block
    raise p.Failed(f"{PAGE}: no example of an instance type")


def node_template():
    """The page's example of a node, as cluster-autoscaler's provider kwok reads it."""
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        documents = [d for d in yaml.safe_load_all(block) if isinstance(d, dict)]
        if documents and documents[0].get("kind") == "Node":
            return documents[0]
    raise p.Failed(f"{PAGE}: no example of a Node")


def groups(node):
    """The ConfigMaps of the provider: one group of such nodes."""
    settings = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": "node-group"},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
    }
    nodes = {"apiVersion": "v1", "kind": "List", "items": [node]}
    for name, key, value in (
        ("kwok-provider-config", "config", settings),
        ("kwok-provider-templates", "templates", nodes),
    ):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {key: yaml.safe_dump(value)},
        }


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


class Rig(unittest.TestCase):
    """One autoscaler. A subclass starts it, and names its nodes by their label and its objects."""

    programs = ()
    selector = objects = opinion = ""

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
        cls.folder = tempfile.TemporaryDirectory()
        kwok = p.run("bash", "-c", "command -v kwok").stdout.strip()
        selector = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
        cls.programs = [cls.program("kwok", [kwok, "--kubeconfig", os.environ["KUBECONFIG"], selector], {})]
        cls.start()

    @classmethod
    def program(cls, name, command, more):
        # Its parent's death ends it too.
        bound = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        with open(pathlib.Path(cls.folder.name) / f"{name}.log", "w") as log:
            return subprocess.Popen(bound, env={**os.environ, **more}, stdout=log, stderr=log)

    @classmethod
    def tearDownClass(cls):
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        cls.stop()
        for program in cls.programs:
            program.kill()
            program.wait()
        for node in cls.made():
            p.kubectl("delete", "node", node["metadata"]["name"], "--wait=false", check=False)
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait")
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)
        cls.folder.cleanup()

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            print(p.kubectl("-n", SPACE, "get", "pods,events", "-o", "wide", check=False))
            print(p.kubectl("get", self.objects, "-o", "wide", check=False))
            for log in pathlib.Path(self.folder.name).glob("*.log"):
                print(log.name, *log.read_text().splitlines()[-20:], sep="\n")
        p.kubectl("-n", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        p.kubectl("-n", SPACE, "delete", "events", "--all", check=False)
        p.wait(180, "the autoscaler to take its nodes away", lambda: not self.made())

    @classmethod
    def made(cls):
        return p.get("nodes", "-l", cls.selector)["items"]

    def share(self, name, fraction):
        self.assertEqual(p.apply(p.idle_pod(name, {"sluice.dev/gpu-fraction": fraction}), SPACE).returncode, 0)

    def running(self, *names):
        for name in names:
            p.wait(120, f"{name} to run", lambda name=name: p.phase(name, SPACE) == "Running")

    def told(self, pod, reason):
        chosen = f"--field-selector=involvedObject.name={pod},reason={reason}"
        return [e["message"] for e in p.get("-n", SPACE, "events", chosen)["items"]]

    def fill(self):
        """Both cards of the real node; then one share more, for which a node comes."""
        for i in range(4):
            self.share(f"old-{i}", "0.5")
        self.running(*(f"old-{i}" for i in range(4)))
        self.share("more", "0.5")
        p.wait(90, "a node for the share", self.made)
        node = p.wait(60, "its units", lambda: [n for n in self.made() if units(n)])[0]
        self.assertEqual(units(node), 200)
        return node["metadata"]["name"]

    def publish(self, name):
        """The chart's scheduler binds to cards, and these are told by the node's agent, whose part is played here."""
        cards = json.loads(p.get("node", os.environ["CLUSTER_NODE"])["metadata"]["annotations"][GPUS])
        for i, card in enumerate(cards):
            card.update(uuid=f"GPU-{name}-{i}", free=100)
            card.pop("pods", None)
        p.kubectl("annotate", "node", name, f"{GPUS}={json.dumps(cards)}")

    def bound_there(self, name):
        self.publish(name)
        self.running("more")
        pod = p.get("-n", SPACE, "pod", "more")
        self.assertEqual(pod["spec"]["nodeName"], name)
        self.assertIn(f"GPU-{name}-", pod["metadata"]["annotations"]["sluice.dev/placement"])
        self.assertEqual(len(self.made()), 1)

    def fits_no_card(self):
        """80 units are free in all, 40 on each card, and a pod of 60 waits."""
        for i in range(2):
            self.share(f"big-{i}", "0.6")
        self.running("big-0", "big-1")
        self.share("waits", "0.6")

    def nothing_comes(self):
        line = lambda: [x for x in p.plugin("doctor", check=False).stdout.splitlines() if "no card fits" in x]
        self.assertIn("the sum fits, no card fits: 1 pod", p.wait(60, "doctor's line", line)[0])
        self.assertEqual((self.made(), p.phase("waits", SPACE)), ([], "Pending"))


class Karpenter(Rig):
    selector = "karpenter.sh/nodepool=gpus"
    objects = "nodes,nodeclaims"

    @classmethod
    def start(cls):
        module = p.run(q.TOOLS, "--queues", "--module", "sigs.k8s.io/karpenter").stdout.strip()
        for folder in ("pkg/apis/crds", "kwok/apis/crds"):
            p.kubectl("apply", "--server-side", "-f", f"{module}/{folder}")
        p.kubectl("wait", "--for=condition=Established", "crd", "nodepools.karpenter.sh", "--timeout=60s")
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
        cls.programs.append(cls.program("karpenter", [q.programs() / "karpenter"], more))
        for manifest in pools():
            p.apply(manifest)
        ready = lambda: (
            "True"
            in p.kubectl("get", "nodepool", "gpus", "-o", 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')
        )
        p.wait(120, "Karpenter to accept the pool", ready)

    @classmethod
    def stop(cls):
        p.kubectl("delete", "nodepools,nodeclaims", "--all", "--wait=true", "--timeout=60s", check=False)
        names = [c["metadata"]["name"] for c in p.get("crds")["items"]]
        p.kubectl("delete", "crd", *[n for n in names if "karpenter" in n], "--wait=false", check=False)

    def test_a_share_without_room_brings_a_node(self):
        name = self.fill()
        claim = p.get("nodeclaims")["items"][0]
        self.assertEqual(claim["spec"]["resources"]["requests"][q.UNITS], "50")
        self.bound_there(name)

    def test_no_node_while_the_sum_suffices(self):
        # The page says that an autoscaler does nothing for such a pod.
        self.fits_no_card()
        told = p.wait(90, "Karpenter's opinion", lambda: self.told("waits", "Nominated"))
        self.assertIn(os.environ["CLUSTER_NODE"], told[0])
        self.nothing_comes()


PROGRAM = os.environ.get("SLUICE_CLUSTER_AUTOSCALER", "")


@unittest.skipIf(not PROGRAM, "SLUICE_CLUSTER_AUTOSCALER names no program cluster-autoscaler")
class ClusterAutoscaler(Rig):
    """cluster-autoscaler with its provider kwok, whose groups begin without a node."""

    selector = "node-group=two-gpus"
    objects = "nodes"

    @classmethod
    def start(cls):
        for manifest in groups(node_template()):
            p.apply(manifest, "kube-system")
        cls.autoscale()

    @classmethod
    def autoscale(cls):
        """Starts it, anew with other node groups."""
        cls.end()
        more = {"POD_NAMESPACE": "kube-system", "KWOK_PROVIDER_MODE": "local"}
        command = [
            *(PROGRAM, "--kubeconfig", os.environ["KUBECONFIG"], "--cloud-provider=kwok", "--namespace=kube-system"),
            *("--leader-elect=false", "--scan-interval=2s", "--address=127.0.0.1:18085", "--v=2"),
            *(
                "--scale-down-unneeded-time=4s",
                "--scale-down-delay-after-add=4s",
                "--unremovable-node-recheck-timeout=4s",
            ),
            "--write-status-configmap=false",
            "--record-duplicated-events=true",
        ]
        cls.programs.append(cls.program("cluster-autoscaler", command, more))

    @classmethod
    def end(cls):
        for program in cls.programs[1:]:
            program.kill()
            program.wait()
        del cls.programs[1:]

    @classmethod
    def stop(cls):
        names = [m["metadata"]["name"] for m in groups(node_template())]
        p.kubectl("-n", "kube-system", "delete", "configmap", *names, check=False)

    def test_a_share_brings_the_first_node_of_its_group(self):
        self.bound_there(self.fill())
        self.assertIn("two-gpus 0->1", self.told("more", "TriggeredScaleUp")[0])

    def test_a_group_whose_template_names_no_units_stays_empty(self):
        template = node_template()
        for part in ("capacity", "allocatable"):
            del template["status"][part][q.UNITS]
        for manifest in groups(template):
            p.apply(manifest, "kube-system")
        self.autoscale()
        try:
            for i in range(4):
                self.share(f"old-{i}", "0.5")
            self.running(*(f"old-{i}" for i in range(4)))
            self.share("more", "0.5")
            told = p.wait(90, "its opinion", lambda: self.told("more", "NotTriggerScaleUp"))
            self.assertIn("Insufficient sluice.dev/gpu-percent", told[0])
            self.assertEqual(self.made(), [])
        finally:
            for manifest in groups(node_template()):
                p.apply(manifest, "kube-system")
            self.autoscale()

    def test_no_node_while_the_sum_suffices(self):
        # By its count the pod fits on the real node, so it reports nothing.
        self.fits_no_card()
        end = time.monotonic() + 25
        while time.monotonic() < end:
            self.assertEqual((self.made(), self.told("waits", "TriggeredScaleUp")), ([], []))
            time.sleep(1)
        self.nothing_comes()
        # The page's placeholder: the sum does not suffice for it.
        self.share("placeholder", "0.9")
        name = p.wait(90, "a node", self.made)[0]["metadata"]["name"]
        self.publish(name)
        self.running("waits")
        self.assertEqual(p.get("-n", SPACE, "pod", "waits")["spec"]["nodeName"], name)


def units(node):
    return int(node["status"].get("allocatable", {}).get(q.UNITS, 0))


if __name__ == "__main__":
    p.require()
    unittest.main()
