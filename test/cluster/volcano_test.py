#!/usr/bin/python3
"""Volcano on the real control plane: its queues count shares, its gangs start whole, and it places on cards with room.

Volcano's scheduler and controllers run beside the cluster (volcano.py); only the GPU is simulated. The example is that
of docs/operate/queues.md. The class CardsUnseen shows the behaviour without the chart's extender.
"""

import json
import os
import re
import tempfile
import time
import unittest

import product as p
import volcano as v
import yaml

SPACE = f"users-{os.getpid()}"
PAGE = p.ROOT / "docs" / "operate" / "queues.md"


def example():
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        documents = [d for d in yaml.safe_load_all(block) if isinstance(d, dict)]
        if any(d.get("apiVersion") == "batch.volcano.sh/v1alpha1" for d in documents):
            return documents
    raise p.Failed(f"{PAGE}: no example of a Volcano Job")


class Rig(unittest.TestCase):
    extender = True

    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        p.scheduler_image()
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        more = ("--set", "scheduler.volcano.enabled=true", "--set-json", "scheduler.volcano.from=[]")
        p.install(
            *("--set", "scheduler.mode=own", "--set", "scheduler.policy=best-fit"),
            *("--set", "scheduler.image.repository=sluice.test/kube-scheduler", *more),
        )
        p.wait(120, "the node to offer units", lambda: p.offered() == 200)
        p.namespace(SPACE)
        cls.logs = tempfile.TemporaryDirectory()
        cls.volcano = v.Volcano(cls.logs.name)
        cls.volcano.install()
        cls.volcano.schedule(cls.extender)

    @classmethod
    def tearDownClass(cls):
        p.kubectl("-n", SPACE, "delete", "jobs.batch.volcano.sh", "--all", "--timeout=60s", check=False)
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        cls.volcano.remove()
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait")
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)
        cls.logs.cleanup()

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            print(p.kubectl("-n", SPACE, "get", "pods,podgroups,jobs.batch.volcano.sh", "-o", "wide", check=False))
            print(p.kubectl("-n", SPACE, "get", "events", "--sort-by=.lastTimestamp", check=False)[-6000:])
            for name in v.PROGRAMS:
                lines = (self.volcano.logs / f"{name}.log").read_text().splitlines()
                print(name, *[x for x in lines if x[:1] in "EW" or "xtender" in x][-15:], sep="\n")
        p.kubectl("-n", SPACE, "delete", "jobs.batch.volcano.sh", "--all", "--timeout=60s", check=False)
        p.kubectl("-n", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        queues = [q["metadata"]["name"] for q in p.get("queues.scheduling.volcano.sh")["items"]]
        mine = [q for q in queues if q not in ("default", "root")]
        if mine:
            p.kubectl("delete", "queues.scheduling.volcano.sh", *mine, "--timeout=30s", check=False)
        p.wait(60, "the cards to be free", lambda: free() == [100, 100])

    def job(self, name, fraction, replicas=1, least=None, queue="default", **template):
        job = p.local(example()[-1])
        job["metadata"] = {"name": name}
        task = job["spec"]["tasks"][0]
        task["replicas"] = replicas
        task["template"]["metadata"] = {"annotations": {"sluice.dev/gpu-fraction": fraction}}
        task["template"]["spec"].update(template, terminationGracePeriodSeconds=0)
        job["spec"].update(minAvailable=least or replicas, queue=queue)
        job["spec"].pop("policies", None)
        if template.get("priorityClassName"):
            job["spec"]["priorityClassName"] = template["priorityClassName"]
        p.run("kubectl", "-n", SPACE, "create", "-f", "-", text=yaml.safe_dump(job))

    def queue(self, name, **spec):
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
        p.apply({**queue, "spec": {"weight": 1, "reclaimable": True, **spec}})

    def pods(self, job):
        return p.get("-n", SPACE, "pods", "-l", f"volcano.sh/job-name={job}")["items"]

    def running(self, job):
        return len([x for x in self.pods(job) if x["status"]["phase"] == "Running" and not leaving(x)])

    def becomes(self, job, count, seconds=90):
        p.wait(seconds, f"{count} running pods of {job}", lambda: self.running(job) == count)

    def stays(self, seconds=6, **counts):
        """So many pods of each job run, it stays so, and no node has refused a pod."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.assertEqual({job: self.running(job) for job in counts}, counts)
            self.assertEqual(refused(SPACE), [])
            time.sleep(0.5)

    def cards_of(self, job):
        return sorted(x["metadata"]["annotations"].get("sluice.dev/placement", "") for x in self.pods(job))


def free():
    node = p.get("node", os.environ["CLUSTER_NODE"])
    return sorted(c["free"] for c in json.loads(node["metadata"]["annotations"]["sluice.dev/gpus"]))


def leaving(pod):
    return "deletionTimestamp" in pod["metadata"]


def refused(space):
    events = p.get("-n", space, "events", "--field-selector=reason=UnexpectedAdmissionError")["items"]
    return [e["message"] for e in events]


@unittest.skipIf(v.folder()[0] is None, v.folder()[1])
class Volcano(Rig):
    def test_pods_of_the_pages_example_have_shares(self):
        documents = p.local(example())
        for d in documents:
            p.apply(d, SPACE)
        name = documents[-1]["metadata"]["name"]
        task = documents[-1]["spec"]["tasks"][0]
        stored = p.get("-n", SPACE, "jobs.batch.volcano.sh", name)["spec"]["tasks"][0]["template"]["spec"]
        resources = stored["containers"][0]["resources"]
        self.assertEqual([resources[k][v.UNITS] for k in ("requests", "limits")], ["50", "50"])
        self.becomes(name, task["replicas"])
        for pod in self.pods(name):
            self.assertEqual(pod["spec"]["schedulerName"], "volcano")
            self.assertIn("SLUICE_GPU_FRACTION", [e["name"] for e in pod["spec"]["containers"][0]["env"]])

    def test_a_gang_starts_whole_or_not_at_all(self):
        # 180 of 200 units, of which two cards hold 120.
        self.job("three", "0.6", replicas=3)
        p.wait(60, "the gang's pods", lambda: len(self.pods("three")) == 3)
        self.stays(three=0)
        # Nothing is held for it: pods of the chart's scheduler take both cards.
        for name in ("one", "other"):
            p.apply(p.idle_pod(name, {"sluice.dev/gpu-fraction": "0.6"}), SPACE)
        for name in ("one", "other"):
            p.wait(60, f"{name} to run", lambda name=name: p.phase(name, SPACE) == "Running")
        self.stays(three=0)

    def test_a_part_of_a_gang_may_be_enough(self):
        self.job("three", "0.6", replicas=3, least=2)
        self.becomes("three", 2)
        self.stays(three=2)

    def test_four_pods_fill_two_cards(self):
        self.job("four", "0.5", replicas=4)
        self.becomes("four", 4)
        cards = self.cards_of("four")
        self.assertEqual([cards.count(c) for c in sorted(set(cards))], [2, 2])

    def test_no_card_fits_though_the_sum_does(self):
        # 50 units are free on each card.
        for i in range(2):
            self.job(f"large-{i}", "0.6")
        self.becomes("large-0", 1)
        self.becomes("large-1", 1)
        self.job("wants", "0.5")
        p.wait(60, "the pod", lambda: self.pods("wants"))
        reason = "no single card has 50 units free, the largest has 40"
        p.wait(60, "the reason", lambda: [e for e in p.get("-n", SPACE, "events")["items"] if reason in e["message"]])
        line = lambda: [x for x in p.plugin("doctor", check=False).stdout.splitlines() if "no card fits" in x]
        self.assertIn("the sum fits, no card fits: 1 pod", p.wait(60, "doctor's line", line)[0])
        self.stays(wants=0)
        self.job("small", "0.4")
        self.becomes("small", 1)
        p.kubectl("-n", SPACE, "delete", "jobs.batch.volcano.sh", "large-1")
        self.becomes("wants", 1)
        self.assertEqual(refused(SPACE), [])

    def test_a_queues_capability_counts_units(self):
        self.queue("small", capability={v.UNITS: 100})
        for i in range(3):
            self.job(f"half-{i}", "0.5", queue="small")
        state = lambda: sum(self.running(f"half-{i}") for i in range(3))
        p.wait(60, "two running", lambda: state() == 2)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            self.assertEqual(state(), 2)
            time.sleep(0.5)
        first = next(i for i in range(3) if self.running(f"half-{i}"))
        p.kubectl("-n", SPACE, "delete", "jobs.batch.volcano.sh", f"half-{first}")
        p.wait(60, "the third", lambda: state() == 2 and not self.pods(f"half-{first}"))

    def test_a_queue_reclaims_its_part(self):
        # By weight, each queue deserves one of two GPUs; the first took both.
        for name in ("team-a", "team-b"):
            self.queue(name)
        for i in range(4):
            self.job(f"a-{i}", "0.5", queue="team-a")
        p.wait(90, "both cards to be full", lambda: sum(self.running(f"a-{i}") for i in range(4)) == 4)
        self.job("b", "0.5", queue="team-b")
        self.becomes("b", 1, 120)
        self.assertEqual(sum(self.running(f"a-{i}") for i in range(4)), 3)
        self.assertEqual(refused(SPACE), [])

    def priorities(self):
        for name, value in (("low", 10), ("high", 1000)):
            p.apply({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": f"test-{name}"}, "value": value,
            })  # fmt: skip
            self.addCleanup(p.kubectl, "delete", "priorityclass", f"test-{name}", check=False)

    def test_a_higher_priority_evicts_for_a_card(self):
        self.priorities()
        for i in range(2):
            self.job(f"low-{i}", "0.6", priorityClassName="test-low")
            self.becomes(f"low-{i}", 1)
        self.job("high", "0.9", priorityClassName="test-high")
        self.becomes("high", 1, 120)
        # One victim was enough.
        self.assertEqual(sum(self.running(f"low-{i}") for i in range(2)), 1)
        self.assertEqual(refused(SPACE), [])

    def test_no_pod_is_evicted_where_no_card_would_be_free(self):
        # Without both pods of low priority, 60 units are free on each card: 120 in sum, and none for a pod of 70.
        self.priorities()
        for i in range(2):
            self.job(f"low-{i}", "0.6", priorityClassName="test-low")
            self.becomes(f"low-{i}", 1)
            self.job(f"kept-{i}", "0.4", priorityClassName="test-high")
            self.becomes(f"kept-{i}", 1)
        self.assertEqual(self.cards_of("low-0"), self.cards_of("kept-0"))
        uids = lambda: {n: [x["metadata"]["uid"] for x in self.pods(n)] for n in ("low-0", "low-1")}
        before = uids()
        self.job("high", "0.7", priorityClassName="test-high")
        p.wait(60, "its pod", lambda: self.pods("high"))
        self.stays(15, **{"low-0": 1, "low-1": 1, "kept-0": 1, "kept-1": 1, "high": 0})
        self.assertEqual(uids(), before)

    def test_the_extender_may_write_the_cards_of_waiting_pods_alone(self):
        account = f"--as=system:serviceaccount:{p.SPACE}:sluice-scheduler"

        def written(name, **annotations):
            pod = p.get("-n", SPACE, "pod", name)
            pod["metadata"].setdefault("annotations", {}).update(annotations)
            path = f"/api/v1/namespaces/{SPACE}/pods/{name}/status"
            return p.run(
                "kubectl", account, "replace", "--raw", path, "-f", "-", text=json.dumps(pod), check=False
            ).stderr

        cards = {"sluice.dev/placement": "{}"}
        p.apply(p.idle_pod("runs", {}), SPACE)
        p.wait(60, "runs to run", lambda: p.phase("runs", SPACE) == "Running")
        p.apply(p.idle_pod("waits", {}, schedulerName="no-scheduler"), SPACE)
        self.assertEqual(written("waits", **cards), "")
        self.assertIn("only pods that wait for a node", written("runs", **cards))
        self.assertIn("nothing of a pod but its annotation", written("waits", **cards, other="x"))


@unittest.skipIf(v.folder()[0] is None, v.folder()[1])
class CardsUnseen(Rig):
    """The control run: Volcano without the extender plugin."""

    extender = False

    def test_the_node_refuses_a_size_that_no_card_holds(self):
        for i in range(2):
            self.job(f"large-{i}", "0.6")
            self.becomes(f"large-{i}", 1)
        self.job("wants", "0.5")
        p.wait(60, "a refusal by the node", lambda: refused(SPACE))
        self.assertEqual(self.running("wants"), 0)


if __name__ == "__main__":
    p.require()
    unittest.main()
