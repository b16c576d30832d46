#!/usr/bin/python3
"""Batch queues on the real control plane: Kueue's quota counts shares of GPUs, for Jobs, JobSets and LeaderWorkerSets.

Kueue, JobSet and LeaderWorkerSet run as pods, installed by their own manifests; only the GPU is simulated. The examples
are those of docs/operate/queues.md.
"""

import os
import re
import time
import unittest

import product as p
import queues as q
import yaml

SPACE = f"users-{os.getpid()}"
PAGE = p.ROOT / "docs" / "operate" / "queues.md"


def example(kind):
    """The documents of the page's example of this kind, with images that the node has."""
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        documents = list(yaml.safe_load_all(block))
        if any(d["kind"] == kind for d in documents):
            return documents
    raise p.Failed(f"{PAGE}: no example of a {kind}")


def template_units(pod_template):
    c = pod_template["spec"]["containers"][0].get("resources", {})
    return c.get("requests", {}).get(q.UNITS), c.get("limits", {}).get(q.UNITS)


class Queues(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        p.scheduler_image()
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        cls.install()
        p.wait(120, "the node to offer units", lambda: p.offered() == 200)
        for name in ("jobset", "lws", "kueue"):
            q.install(name)
        p.namespace(SPACE)
        q.queue(SPACE, 100)

    @staticmethod
    def install(*more):
        p.install(
            *("--set", "scheduler.mode=own", "--set", "scheduler.policy=best-fit"),
            *("--set", "scheduler.image.repository=sluice.test/kube-scheduler"),
            *more,
        )

    @classmethod
    def tearDownClass(cls):
        for kind in ("jobs", "jobsets", "leaderworkersets", "pods", "localqueues"):
            p.kubectl("-n", SPACE, "delete", kind, "--all", "--wait=true", "--timeout=60s", check=False)
        p.kubectl("delete", "clusterqueues,resourceflavors", "--all", "--wait=true", "--timeout=60s", check=False)
        p.kubectl("delete", "namespace", SPACE, "--wait=true", check=False)
        for name in ("kueue", "lws", "jobset"):
            q.remove(name)
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait")
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)

    def setUp(self):
        q.queue(SPACE, 100)

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            q.dump(SPACE)
        for kind in ("leaderworkersets", "jobsets", "jobs"):
            p.kubectl("-n", SPACE, "delete", kind, "--all", "--cascade=foreground", "--timeout=90s", check=False)
        p.kubectl("-n", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        p.wait(90, "the quota to be free", lambda: q.used() == 0)

    def create(self, manifest):
        return p.run("kubectl", "-n", SPACE, "create", "-f", "-", "-o", "name", text=yaml.safe_dump(manifest)).stdout

    def running(self, count, selector=()):
        def ready():
            items = p.get("-n", SPACE, "pods", *selector)["items"]
            return len([i for i in items if i["status"]["phase"] == "Running"]) == count

        p.wait(120, f"{count} running pods", ready)

    def holds(self, admitted, waiting, units):
        """Kueue has admitted so many workloads, and it stays so."""
        state = lambda: (*(len(x) for x in q.workloads(SPACE)), q.used())
        p.wait(60, f"{admitted} admitted and {waiting} waiting", lambda: state() == (admitted, waiting, units))
        end = time.monotonic() + 3
        while time.monotonic() < end:
            self.assertEqual(state(), (admitted, waiting, units))
            time.sleep(0.5)

    def job(self, fraction, **spec):
        job = p.local(example("Job")[-1])
        job["metadata"] = {"generateName": "shared-", "labels": job["metadata"]["labels"]}
        job["spec"]["template"]["metadata"]["annotations"] = {"sluice.dev/gpu-fraction": fraction}
        job["spec"].update(spec)
        return self.create(job).strip()

    def test_kueue_admits_jobs_by_the_quota_of_units(self):
        names = [self.job("0.5") for _ in range(3)]
        stored = p.get("-n", SPACE, names[0])["spec"]["template"]
        self.assertEqual(template_units(stored), ("50", "50"))
        self.holds(2, 1, 100)
        self.running(2)
        for pod in p.get("-n", SPACE, "pods")["items"]:
            c = pod["spec"]["containers"][0]
            self.assertEqual(c["resources"]["limits"][q.UNITS], "50")
            self.assertIn("SLUICE_GPU_FRACTION", [e["name"] for e in c["env"]])
        # The next Job gets the units that one held.
        first = next(n for n in names if not p.get("-n", SPACE, n)["spec"].get("suspend"))
        p.kubectl("-n", SPACE, "delete", first, "--cascade=foreground", "--timeout=60s")
        self.holds(2, 0, 100)
        self.running(2)

    def test_the_case_that_failed(self):
        # ../shared's input: three pods of one Job, together more than the quota; a smaller one is admitted whole.
        job = {"parallelism": 3, "completions": 3}
        self.job("0.5", **job)
        self.holds(0, 1, 0)
        self.job("0.25", **job)
        self.holds(1, 1, 75)
        self.running(3)

    def test_without_units_in_templates_the_quota_is_passed_by(self):
        # The control run: the webhook makes the difference. The API server follows its configuration within a second.
        self.install("--set-json", "webhook.queued=[]")
        try:
            time.sleep(3)
            names = [self.job("0.5") for _ in range(3)]
            self.holds(3, 0, 0)
            self.assertEqual(template_units(p.get("-n", SPACE, names[0])["spec"]["template"]), (None, None))
        finally:
            self.install()
            time.sleep(3)

    def test_a_jobset_is_admitted_whole_or_not_at_all(self):
        jobset = p.local(example("JobSet")[-1])
        workers = jobset["spec"]["replicatedJobs"][-1]
        self.create(jobset)
        self.holds(1, 0, 100)
        self.running(3)
        more = dict(jobset, metadata=dict(jobset["metadata"], name="second"))
        self.create(more)
        self.holds(1, 1, 100)
        stored = p.get("-n", SPACE, "jobset", "second")["spec"]["replicatedJobs"][-1]
        self.assertEqual(template_units(stored["template"]["spec"]["template"]), ("25", "25"))
        self.assertEqual(stored["name"], workers["name"])
        p.kubectl("-n", SPACE, "delete", "jobset", jobset["metadata"]["name"], "--cascade=foreground", "--timeout=90s")
        self.holds(1, 0, 100)
        self.running(3)

    def test_a_leaderworkerset_counts_leader_and_workers(self):
        lws = p.local(example("LeaderWorkerSet")[-1])
        self.create(lws)
        stored = p.get("-n", SPACE, "leaderworkerset", lws["metadata"]["name"])["spec"]["leaderWorkerTemplate"]
        self.assertEqual(template_units(stored["workerTemplate"]), ("40", "40"))
        self.holds(1, 0, 80)
        self.running(2)
        self.job("0.25")
        self.holds(1, 1, 80)

    def test_an_applied_manifest_keeps_the_units(self):
        # While it waits: in an admitted JobSet, Kueue's own labels stand in the templates, which then cannot change.
        q.queue(SPACE, 50)
        job = dict(p.local(example("JobSet")[-1]))
        for replicated in job["spec"]["replicatedJobs"]:
            # JobSet sets it at creation alone, and then refuses an apply without it.
            replicated["template"]["spec"]["completionMode"] = "Indexed"
        name = job["metadata"]["name"]
        p.apply(job, SPACE)
        self.holds(0, 1, 0)
        templates = lambda: [
            r["template"]["spec"]["template"] for r in p.get("-n", SPACE, "jobset", name)["spec"]["replicatedJobs"]
        ]
        before = templates()
        output = p.apply(job, SPACE)
        self.assertEqual(output.returncode, 0, output.stderr)
        self.assertEqual(templates(), before)
        replaced = p.get("-n", SPACE, "jobset", name)
        replaced["spec"]["replicatedJobs"] = job["spec"]["replicatedJobs"]
        output = p.run("kubectl", "replace", "-f", "-", text=yaml.safe_dump(replaced), check=False)
        self.assertEqual(output.returncode, 0, output.stderr)
        self.assertEqual(templates(), before)
        self.assertEqual(template_units(before[-1]), ("25", "25"))

    def test_the_sum_fits_and_no_card_fits(self):
        # Quota and nodes' sums know no cards: 180 of 200 units are free in all, the third pod fits on no card.
        q.queue(SPACE, 200)
        for _ in range(3):
            self.job("0.6")
        self.holds(3, 0, 180)
        self.running(2)
        line = lambda: [x for x in p.plugin("doctor", check=False).stdout.splitlines() if "no card fits" in x]
        self.assertIn("the sum fits, no card fits: 1 pod", p.wait(60, "doctor's line", line)[0])
        self.running(2)


if __name__ == "__main__":
    p.require()
    unittest.main()
