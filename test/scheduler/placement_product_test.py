#!/usr/bin/python3
"""Placement as users see it; only the GPU is simulated.

helm install with a second scheduler, pods bound to cards, reservations honoured.
"""

import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))
import product as p

SPACE = f"placement-{os.getpid()}"


def install(replicas=1):
    # best-fit: the only policy whose choices do not depend on earlier requests.
    p.install(
        "--set",
        "scheduler.mode=own",
        "--set",
        "scheduler.policy=best-fit",
        "--set",
        "webhook.removeRefused.enabled=true",
        "--set",
        "webhook.removeRefused.afterSeconds=2",
        "--set",
        "scheduler.image.repository=sluice.test/kube-scheduler",
        "--set",
        f"scheduler.replicas={replicas}",
    )


def pod_of(name):
    return p.get("-n", SPACE, "pod", name)


def condition(pod):
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})


def placement(name):
    return json.loads(pod_of(name)["metadata"]["annotations"]["sluice.dev/placement"])["main"]


class Placement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        p.scheduler_image()
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        install()
        p.wait(90, "the node to offer units", lambda: p.offered() == 200)
        p.kubectl("-n", p.SPACE, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s")
        p.namespace(SPACE)

    @classmethod
    def tearDownClass(cls):
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        p.run(p.CLUSTER, "helm", "uninstall", "sluice", "-n", p.SPACE, "--wait", check=False)
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)

    def tearDown(self):
        p.kubectl(
            "-n",
            SPACE,
            "delete",
            "replicasets,pods",
            "--all",
            "--force",
            "--grace-period=0",
            "--wait=true",
            check=False,
        )
        p.wait(120, "the cards to be free again", lambda: self.free() == [100, 100])

    def free(self):
        node = p.get("node", os.environ["CLUSTER_NODE"])
        return [c["free"] for c in json.loads(node["metadata"]["annotations"].get("sluice.dev/gpus", "[]"))]

    def create(self, name, fraction, **spec):
        p.apply(p.idle_pod(name, {"sluice.dev/gpu-fraction": str(fraction)}, **spec), SPACE)

    def runs(self, *names):
        for name in names:
            p.wait(120, f"{name} to run", lambda n=name: p.phase(n, SPACE) in ("Running", "Failed"))
            self.assertEqual(p.phase(name, SPACE), "Running", pod_of(name)["status"])

    def device_inside(self, name):
        return p.kubectl("-n", SPACE, "exec", name, "--", "bash", "-c", "ls /dev/nvidia[0-9]*").strip()

    def test_a_pod_gets_the_card_it_is_bound_to(self):
        self.create("first", 0.6)
        self.create("second", 0.6)
        self.runs("first", "second")
        for name in ("first", "second"):
            self.assertEqual(pod_of(name)["spec"]["schedulerName"], "sluice-scheduler")
        self.assertNotEqual(placement("first"), placement("second"))
        self.assertNotEqual(self.device_inside("first"), self.device_inside("second"))
        p.wait(60, "the node's annotation", lambda: self.free() == [40, 40])
        # 80 units are free, but not on a single card.
        self.create("third", 0.6)
        p.wait(90, "a reason", lambda: condition(pod_of("third")).get("reason") == "Unschedulable")
        self.assertIn("no single card has 60 units free, the largest has 40", condition(pod_of("third"))["message"])
        self.assertIn("no single card has 60 units free", p.kubectl("-n", SPACE, "describe", "pod", "third"))
        p.kubectl("-n", SPACE, "delete", "pod", "first", "--force", "--grace-period=0")
        self.runs("third")

    def test_no_pod_is_refused_when_admitted_in_another_order_than_bound(self):
        self.create("half", 0.5)
        self.runs("half")
        self.create("more", 0.6)
        self.runs("more")
        # Free now: 50 and 40. Bound: 40, 25, 25. Admitted by best fit in the order 25, 25, 40, the last one would find
        # no card.
        for _ in range(3):
            self.bind_while_kubelet_is_down()
            messages = [pod_of(name)["status"].get("message", "") for name in ("a25", "b25", "c40")]
            self.assertFalse([m for m in messages if "sluice refuses" in m])
            if not any(messages):
                break
            # A starting kubelet may check its pods before a device plugin registers: its refusal, not the plugin's.
            p.kubectl("-n", SPACE, "delete", "pods", "a25", "b25", "c40", "--force", "--grace-period=0", "--wait=true")
            p.wait(120, "their units to be free again", lambda: sorted(self.free()) == [40, 50])
        self.runs("a25", "b25", "c40")
        self.assertEqual(placement("a25"), placement("b25"))
        self.assertNotEqual(placement("a25"), placement("c40"))
        self.assertEqual(self.device_inside("c40"), self.device_inside("more"))
        self.assertEqual(self.device_inside("a25"), self.device_inside("half"))
        p.wait(60, "the node's annotation", lambda: sorted(self.free()) == [0, 0])

    def bind_while_kubelet_is_down(self):
        gate = {"schedulingGates": [{"name": "sluice.test/later"}]}
        for name, fraction in (("a25", 0.25), ("b25", 0.25), ("c40", 0.4)):
            self.create(name, fraction, **gate)
        p.run("bash", "-c", 'kill -9 "$(cat "${CLUSTER_CONTAINERD%/*}/kubelet.pid")"')
        try:
            for name in ("c40", "a25", "b25"):
                p.kubectl(
                    "-n",
                    SPACE,
                    "patch",
                    "pod",
                    name,
                    "--type=json",
                    "-p",
                    '[{"op":"remove","path":"/spec/schedulingGates"}]',
                )
                p.wait(90, f"{name} to be bound", lambda n=name: pod_of(n)["spec"].get("nodeName"))
        finally:
            # A kubelet that starts admits its pods in the order of their creation: a25, b25, c40.
            p.run(p.CLUSTER, "restart", "kubelet")
        for name in ("a25", "b25", "c40"):
            p.wait(120, f"{name} to be admitted or refused", lambda n=name: p.phase(n, SPACE) in ("Running", "Failed"))

    def test_a_pod_refused_by_the_node_is_removed(self):
        self.create("half", 0.5)
        self.create("more", 0.6)
        self.runs("half", "more")
        template = p.idle_pod(
            "x", {"sluice.dev/gpu-fraction": "0.6"}, nodeName=os.environ["CLUSTER_NODE"], restartPolicy="Always"
        )
        labels = {"app": "refused"}
        p.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": "refused"},
                "spec": {
                    "replicas": 1,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"annotations": template["metadata"]["annotations"], "labels": labels},
                        "spec": template["spec"],
                    },
                },
            },
            SPACE,
        )

        def refused():
            return [
                x
                for x in p.get("-n", SPACE, "pods", "-l", "app=refused")["items"]
                if x["status"].get("phase") == "Failed"
            ]

        first = p.wait(120, "a refusal", refused)[0]
        self.assertEqual(first["status"]["reason"], "UnexpectedAdmissionError")
        self.assertIn("sluice refuses", first["status"]["message"])
        p.kubectl("-n", SPACE, "scale", "replicaset", "refused", "--replicas=0")
        p.wait(120, "the refused pods to be removed", lambda: not refused())

    def test_the_extender_exports_metrics(self):
        pod = p.get("-n", p.SPACE, "pods", "-l", "app.kubernetes.io/component=scheduler")["items"][0]["metadata"][
            "name"
        ]
        metrics = p.kubectl("get", "--raw", f"/api/v1/namespaces/{p.SPACE}/pods/{pod}:9404/proxy/metrics")
        self.assertIn("sluice_extender_nodes 1\n", metrics)
        self.assertIn("sluice_extender_cards 2\n", metrics)
        self.assertIn("sluice_extender_fragmented_gpus ", metrics)
        # The metrics address accepts no bind.
        result = p.run(
            "kubectl",
            "create",
            "--raw",
            f"/api/v1/namespaces/{p.SPACE}/pods/{pod}:9404/proxy/bind",
            "-f",
            "-",
            text="{}",
            check=False,
        )
        self.assertNotEqual(result.returncode, 0)

    def test_two_replicas_elect_a_leader(self):
        try:
            install(replicas=2)
            self.create("first", 0.6)
            self.runs("first")
            leader = p.get("-n", p.SPACE, "lease", "sluice-scheduler")["spec"]["holderIdentity"].rsplit("_", 1)[0]
            p.kubectl("-n", p.SPACE, "delete", "pod", leader, "--wait=false")
            # The other replica's extender knows the reservations from its watches.
            self.create("second", 0.6)
            self.runs("second")
            self.assertNotEqual(placement("first"), placement("second"))
            self.create("third", 0.6)
            p.wait(90, "a reason", lambda: condition(pod_of("third")).get("reason") == "Unschedulable")
            self.assertIn("no single card has 60 units free, the largest has 40", condition(pod_of("third"))["message"])
            self.assertNotEqual(
                p.get("-n", p.SPACE, "lease", "sluice-scheduler")["spec"]["holderIdentity"].rsplit("_", 1)[0], leader
            )
        finally:
            install()

    def test_doctor_reports_placed_and_waiting_pods(self):
        self.create("whole", 1)
        self.create("other", 1)
        self.runs("whole", "other")
        output = p.run(p.BUILD / "bin" / "sluice", "doctor", check=False).stdout
        self.assertIn("placement: 2 pods with a fraction placed, none waits, none was refused", output)


if __name__ == "__main__":
    p.require()
    unittest.main()
