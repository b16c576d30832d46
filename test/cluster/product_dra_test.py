#!/usr/bin/python3
"""sluice through Dynamic Resource Allocation on the real control plane: helm install, claims, restarts, many claims.

It needs Kubernetes 1.36 or newer: SLUICE_CLUSTER_KUBERNETES=1.37. CLAIMS (default 60) is the number of claims of the
long run, in which driver and kubelet are killed.
"""

import collections
import json
import os
import pathlib
import random
import re
import sys
import time
import unittest

import product as p
import yaml
from product_annotations_cases import Annotations
from product_claims import EXAMPLES, SPACE, claim_template, documents, unscheduled, with_claim
from product_places_cases import CARDS, CLIQUE_CARDS, Places, make_sysfs

sys.path.insert(0, str(p.ROOT / "test" / "lib"))
import exit_line

GIB = 1 << 30
CLAIMS = int(os.environ.get("CLAIMS", "60"))
CDI = pathlib.Path("/var/run/cdi")


def driver_processes():
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            is_driver = (entry / "comm").read_text().strip() == "sluice-dra-driver"[:15]
            if is_driver and "/kubepods/" in (entry / "cgroup").read_text():
                found.append(entry)
        except OSError:
            continue  # no process, or one that has just ended
    return found


class Claims(Annotations, Places, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        profile = pathlib.Path(os.environ["CLUSTER_STATE"]) / "large.profile"
        lines = ("name = NVIDIA H200", f"gpus = {CARDS}", "memory = 150754820096", f"clique_cards = {CLIQUE_CARDS}")
        profile.write_text("\n".join(lines) + "\n")
        p.run(p.CLUSTER, "gpus", p.BUILD, profile)
        sysfs = make_sysfs()
        p.scheduler_image()
        p.install(
            *("--set", "dra.enabled=auto", "--set", "dra.extendedResourceName=sluice.dev/gpu"),
            *("--set", "agent.config.reserve=1Gi", "--set", f"devicePlugin.config.sysRoot={sysfs}"),
            *("--set", "scheduler.mode=own", "--set", "scheduler.image.repository=sluice.test/kube-scheduler"),
        )
        p.wait(90, "the cards in the node's slice", lambda: len(cls.devices()) == CARDS)
        cls.nodes_pod_is_ready()
        p.namespace(SPACE, **{"resource.kubernetes.io/admin-access": "true"})

    @classmethod
    def tearDownClass(cls):
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        p.run(p.CLUSTER, "helm", "uninstall", "sluice", "-n", p.SPACE, "--wait", check=False)
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)
        p.kubectl("delete", "resourceslices", "--all", check=False)
        for path in CDI.glob("sluice.dev-*.json"):
            path.unlink()

    @staticmethod
    def nodes_pod_is_ready():
        ready = ("wait", "--for=condition=Ready", "pods", "-l", "app.kubernetes.io/component=node", "--timeout=90s")
        p.kubectl("-n", p.SPACE, *ready)

    @staticmethod
    def devices():
        return [d for s in p.get("resourceslices")["items"] for d in s["spec"].get("devices", [])]

    def setUp(self):
        self.assertEqual(self.held(), [])

    def tearDown(self):
        kinds = "deployments,pods,resourceclaims,resourceclaimtemplates,resourcequotas"
        p.kubectl("-n", SPACE, "delete", kinds, "--all", "--force", "--grace-period=0", "--wait=true", check=False)
        p.wait(90, "the allocations of deleted pods to be given back", lambda: not self.held())
        p.wait(30, "the claims' specs to go", lambda: not list(CDI.glob("sluice.dev-claim_*")))

    @staticmethod
    def held():
        return p.agent_status().get("allocations", [])

    def create(self, *manifests, check=True):
        text = yaml.safe_dump_all(manifests)
        return p.run("kubectl", "-n", SPACE, "create", "-f", "-", text=text, check=check)

    def runs(self, *names, seconds=120):
        for name in names:
            p.wait(seconds, f"{name} to run", lambda n=name: p.phase(n, SPACE) == "Running")

    def inside(self, name, *command):
        return p.kubectl("-n", SPACE, "exec", name, "--", *command)

    def nodes_inside(self, name):
        return len(self.inside(name, "bash", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null; true").split())

    def test_every_example_is_given_its_request(self):
        # Cards that the pod sees, and bytes on each of them; None: no share.
        expected = {
            "alternatives.yaml": (1, 40 * GIB),
            "extended-resource.yaml": (1, self.card_bytes()),
            "half-a-card.yaml": (1, 40 * GIB),
            "monitoring.yaml": (CARDS, None),
            "settings.yaml": (1, 40 * GIB),
            "shared-by-pods.yaml": (1, 20 * GIB),
            "two-cards.yaml": (2, 40 * GIB),
            "one-numa-node.yaml": (2, 20 * GIB),
            "one-nvlink-clique.yaml": (2, 20 * GIB),
            "unhealthy-card.yaml": (1, GIB),
            "whole-card.yaml": (1, self.card_bytes()),
        }
        files = sorted(f.name for f in EXAMPLES.glob("*.yaml"))
        self.assertEqual(files, sorted([*expected, "quota.yaml"]))
        for file, (cards, size) in expected.items():
            with self.subTest(file):
                manifests = documents(file)
                pods = [m["metadata"]["name"] for m in manifests if m["kind"] == "Pod"]
                self.create(*manifests)
                self.runs(*pods)
                for pod in pods:
                    self.assertEqual(self.nodes_inside(pod), cards, pod)
                    env = dict(x.split("=", 1) for x in self.inside(pod, "env").splitlines() if "=" in x)
                    self.assertEqual("LD_PRELOAD" in env, size is not None)
                shares = [g for a in self.held() for g in a["gpus"]]
                self.assertEqual([int(g["guaranteed_bytes"]) for g in shares], [size] * cards if size else [])
                if file == "settings.yaml":
                    self.assertEqual(int(shares[0]["limit_bytes"]), 96 * GIB)
                self.tearDown()

    @classmethod
    def card_bytes(cls):
        text = cls.devices()[0]["capacity"]["memory"]["value"]
        units = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": GIB}
        number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
        return int(number) * units[unit]

    def test_the_quota_holds(self):
        self.create(*documents("quota.yaml"), claim_template("small", "1Gi"))
        for i in range(5):
            p.apply(with_claim(p.idle_pod(f"q{i}", {}), "small"), SPACE)
        p.wait(60, "four shares", lambda: len(self.held()) == 4)
        output = lambda: " ".join(e["message"] for e in p.get("-n", SPACE, "events")["items"])
        p.wait(60, "the quota's sentence", lambda: "exceeded quota: gpu-claims" in output())
        self.assertEqual(len(self.held()), 4)

    def test_a_training_is_held_to_its_claim(self):
        self.create(claim_template("quarter", "4Gi", "25", log_level="INFO"))
        p.apply(with_claim(p.training_pod("train", {}), "quarter"), SPACE)
        p.wait(120, "the training to end", lambda: p.phase("train", SPACE) in ("Succeeded", "Failed"))
        log = p.kubectl("-n", SPACE, "logs", "train")
        self.assertEqual(p.phase("train", SPACE), "Succeeded", log)
        line = exit_line.parse(log)[0]  # 5.8 GiB are live
        self.assertEqual(line["budget_bytes"], 4 * GIB)
        self.assertGreater(line["fetched_bytes"], GIB)
        self.assertLess(line["launches_over_budget"], line["launches"] / 10)

    def test_claims_are_named(self):
        self.create(claim_template("named", "2Gi"))
        p.apply(with_claim(p.idle_pod("seen", {}), "named"), SPACE)
        self.runs("seen")
        claim = p.get("-n", SPACE, "resourceclaims")["items"][0]["metadata"]["name"]
        self.assertEqual([a["claim"] for a in self.held()], [claim])
        for view in ("top", "status"):
            lines = [
                x for x in p.plugin(view, *(("--once",) if view == "top" else ())).stdout.splitlines() if claim in x
            ]
            self.assertEqual(len(lines), 1, view)
            self.assertIn(f"{SPACE}/seen", lines[0])

    def test_a_wrong_claim_is_denied_where_it_is_written(self):
        for parameters, output in (
            ({"prefetch": "on"}, "accepted: off, launch, predict"),
            ({"gpu_fraction": "0.5"}, "gpu-fraction"),
            ({"memory_limt": "1Gi"}, "memory-limt"),
        ):
            result = self.create(claim_template("wrong", "1Gi", **parameters), check=False)
            self.assertNotEqual(result.returncode, 0, parameters)
            self.assertIn(output, result.stderr)

    def test_cards_are_full_and_one_more_waits(self):
        self.create(claim_template("large", "80Gi", "50"))
        names = [f"large-{card}" for card in range(CARDS)]
        for name in names:
            p.apply(with_claim(p.idle_pod(name, {}), "large"), SPACE)
        self.runs(*names)
        self.assertEqual(len({a["gpus"][0]["uuid"] for a in self.held()}), CARDS)
        p.apply(with_claim(p.idle_pod("more", {}), "large"), SPACE)
        self.assertIn("cannot allocate all claims", p.wait(60, "the sentence", lambda: unscheduled("more")))
        p.kubectl("-n", SPACE, "delete", "pod", names[0], "--force", "--grace-period=0")
        self.runs("more")

    def test_restarts(self):
        self.create(claim_template("some", "10Gi", "10"))
        for name in ("first", "second"):
            p.apply(with_claim(p.idle_pod(name, {}), "some"), SPACE)
        self.runs("first", "second")
        before = sorted(a["id"] for a in self.held())
        p.run(p.CLUSTER, "restart", "kubelet")
        p.kill_in_pods("sluice-dra-driver")
        p.kubectl("wait", "--for=condition=Ready", f"node/{os.environ['CLUSTER_NODE']}", "--timeout=60s")
        p.apply(with_claim(p.idle_pod("third", {}), "some"), SPACE)
        self.runs("third")
        self.assertEqual([p.phase(n, SPACE) for n in ("first", "second")], ["Running", "Running"])
        self.assertLessEqual(set(before), {a["id"] for a in self.held()})
        p.kubectl("-n", SPACE, "delete", "pod", "first", "--force", "--grace-period=0")
        p.wait(60, "its claim to be given back", lambda: len(self.held()) == 2)
        # The pod of the DaemonSet goes, the containers' sockets do not.
        p.kubectl("-n", p.SPACE, "delete", "pod", p.node_pod(), "--wait=true")
        self.nodes_pod_is_ready()
        p.wait(60, "the claims", lambda: len(self.held()) == 2)
        self.assertIn("agent.sock", self.inside("second", "ls", "/opt/sluice/run"))
        self.nodes_pod_is_ready()

    def test_power_cut(self):
        self.create(claim_template("kept", "10Gi", "10"))
        pod = with_claim(p.idle_pod("survivor", {}), "kept")
        pod["spec"]["restartPolicy"] = "Always"
        p.apply(pod, SPACE)
        self.runs("survivor")
        before = [a["id"] for a in self.held()]
        p.run(p.CLUSTER, "down", "--crash")
        for path in CDI.glob("sluice.dev-*.json"):  # /var/run is empty after a boot
            path.unlink()
        p.run(p.CLUSTER, "up")
        p.kubectl("wait", "--for=condition=Ready", f"node/{os.environ['CLUSTER_NODE']}", "--timeout=90s")

        def again():
            status = p.get("-n", SPACE, "pod", "survivor")["status"]
            return status["containerStatuses"][0]["restartCount"] > 0 and p.phase("survivor", SPACE) == "Running"

        p.wait(180, "the pod to run again", again)
        self.nodes_pod_is_ready()
        self.assertEqual([a["id"] for a in self.held()], before)
        self.assertEqual(self.nodes_inside("survivor"), 1)
        self.assertIn("agent.sock", self.inside("survivor", "ls", "/opt/sluice/run"))

    def test_many_claims(self):
        """Random claims are created and deleted, ten at a time; driver or kubelet is killed after each fifty."""
        chance = random.Random(int(os.environ.get("SEED", "1")))
        sizes = {"s": "1Gi", "m": "8Gi", "l": "30Gi"}
        self.create(*(claim_template(k, v, "2") for k, v in sizes.items()))
        room = self.card_bytes()
        made = ended = 0
        began, alive, kills = time.monotonic(), {}, 0
        while ended < CLAIMS:
            while made < CLAIMS and len(alive) < 10:
                made += 1
                pod = with_claim(p.idle_pod(f"c{made}", {}), chance.choice(list(sizes)))
                pod["spec"]["containers"][0]["command"] = ["sleep", f"{chance.uniform(0.1, 3):.1f}"]
                p.apply(pod, SPACE)
                alive[f"c{made}"] = time.monotonic()
                if made % 50 == 25:
                    kills += 1
                    if kills % 2:
                        p.kill_in_pods("sluice-dra-driver")
                    else:
                        p.run(p.CLUSTER, "restart", "kubelet")
            done = []
            for item in p.get("-n", SPACE, "pods")["items"]:
                name, status = item["metadata"]["name"], item["status"]
                self.assertNotEqual(status["phase"], "Failed", json.dumps(status))
                if status["phase"] == "Succeeded" and name in alive:
                    done.append(name)
            for name, since in alive.items():
                self.assertLess(time.monotonic() - since, 180, f"{name} makes no progress: {p.phase(name, SPACE)}")
            if done:
                p.kubectl("-n", SPACE, "delete", "pods", *done, "--force", "--grace-period=0", "--wait=false")
                ended += len(done)
                alive = {k: v for k, v in alive.items() if k not in done}
            held = collections.Counter()
            for claim in p.get("-n", SPACE, "resourceclaims")["items"]:
                for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                    held[result["device"]] += p_bytes(result["consumedCapacity"]["memory"])
            self.assertLessEqual(max(held.values(), default=0), room)
        seconds = time.monotonic() - began
        # A driver drops the pages of its work once no call has come for two seconds.
        memory = lambda: max(resident(d) for d in driver_processes()) / 1024
        busy = memory()
        p.wait(30, "the last claim to be given back", lambda: not self.held())
        # A MiB of it is the simulated NVML.
        idle = p.wait(30, "the memory of the work to be given back", lambda: memory() < 10 and memory())
        print(
            f"{CLAIMS} claims in {seconds:.0f} s, driver or kubelet killed {kills} times; "
            f"the driver's resident memory: {busy:.1f} MiB at the last claim, {idle:.1f} MiB after it"
        )
        self.assertLess(busy, 15)
        p.kubectl("-n", SPACE, "delete", "resourceclaimtemplates", "--all")


def p_bytes(text):
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": GIB}[unit]


def resident(process):
    try:
        return int(re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text()).group(1))
    except (OSError, AttributeError):
        return 0


if __name__ == "__main__":
    p.require()
    minor = int(json.loads(p.kubectl("version", "-o", "json"))["serverVersion"]["minor"].rstrip("+"))
    if minor < 36:
        print(
            f"SKIPPED: Kubernetes 1.{minor} has no consumable capacity; SLUICE_CLUSTER_KUBERNETES=1.37", file=sys.stderr
        )
        sys.exit(p.SKIP)
    unittest.main()
