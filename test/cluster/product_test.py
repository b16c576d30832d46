#!/usr/bin/python3
"""sluice as its users meet it, on the real control plane: helm install, an annotated pod, kubectl logs."""

import json
import os
import sys
import time
import unittest

import product as p

sys.path.insert(0, str(p.ROOT / "test" / "lib"))
import exit_line
from product_several_cases import Several

SPACE = f"users-{os.getpid()}"
EXAMPLES = p.ROOT / "examples"
GIB = 1 << 30


def exit_of(log):
    """The hook's exit line in a container's log, as a dict; a process on one GPU logs one."""
    lines = exit_line.parse(log)
    assert len(lines) == 1, log
    return lines[0]


class Product(Several, unittest.TestCase):
    space = SPACE

    @classmethod
    def setUpClass(cls):
        p.clean()
        p.images()
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        start = time.monotonic()
        p.install()
        p.wait(90, "the node to offer units", lambda: p.offered() == 200)
        cls.install_seconds = time.monotonic() - start
        # helm's --wait is content with a DaemonSet whose only pod is not ready: maxUnavailable is 1.
        p.kubectl(
            "-n",
            p.SPACE,
            "wait",
            "--for=condition=Ready",
            "pods",
            "-l",
            "app.kubernetes.io/component=node",
            "--timeout=90s",
        )
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
            "pods,jobs,deployments,resourcequotas",
            "--all",
            "--force",
            "--grace-period=0",
            "--wait=true",
            check=False,
        )
        p.wait(90, "the allocations of deleted pods to be given back", lambda: not p.agent_status().get("allocations"))

    def run_training(self, name, annotations, **container):
        p.apply(p.training_pod(name, annotations, **container), SPACE)
        p.wait(120, f"{name} to end", lambda: p.phase(name, SPACE) in ("Succeeded", "Failed"))
        log = p.kubectl("-n", SPACE, "logs", name)
        self.assertEqual(p.phase(name, SPACE), "Succeeded", log)
        return log

    def start(self, name, annotations, **spec):
        p.apply(p.idle_pod(name, annotations, **spec), SPACE)
        p.wait(120, f"{name} to run", lambda: p.phase(name, SPACE) == "Running")

    def inside(self, name, *command):
        return p.kubectl("-n", SPACE, "exec", name, "--", *command)

    def test_install_is_quick(self):
        print(f"helm install to the node offering units: {self.install_seconds:.1f} s (goal: 20 s)")
        self.assertLess(self.install_seconds, 60)

    def test_one_annotation_and_the_log_shows_the_budget(self):
        log = self.run_training("half", {"sluice.dev/gpu-fraction": "0.5", "sluice.dev/log-level": "INFO"})
        self.assertAlmostEqual(exit_of(log)["budget_bytes"] / GIB, 8, delta=0.25)
        self.assertIn("steps", log)  # stdout is the program's own
        pod = p.get("-n", SPACE, "pod", "half")
        self.assertIn("sluice.dev/injected", pod["metadata"]["annotations"])
        self.assertEqual(pod["spec"]["containers"][0]["resources"]["limits"]["sluice.dev/gpu-percent"], "50")

    def test_more_than_its_share_is_held_to_its_budget_and_logged(self):
        log = self.run_training("quarter", {"sluice.dev/gpu-fraction": "0.25"})  # 4 GiB for 5.8 GiB live
        line = exit_of(log)
        self.assertAlmostEqual(line["budget_bytes"] / GIB, 4, delta=0.15)
        self.assertGreater(line["fetched_bytes"], GIB, line)
        self.assertGreater(line["evicted_bytes"], GIB, line)
        # Launches queued before residency began may still be running: their memory cannot be evicted before they end.
        self.assertLess(line["launches_over_budget"], line["launches"] / 10, line)

    def test_the_same_pod_without_the_preload_is_not_hooked(self):
        # The control run: the effects in the other tests come from the hook.
        output = p.apply(p.training_pod("stripped", {"sluice.dev/inject": "false"}), SPACE)
        self.assertIn("created", output.stdout)
        p.wait(120, "stripped to end", lambda: p.phase("stripped", SPACE) in ("Succeeded", "Failed"))
        self.assertFalse(exit_line.attached(p.kubectl("-n", SPACE, "logs", "stripped")))

    def test_view_inside_the_container(self):
        self.start("look", {"sluice.dev/gpu-fraction": "0.3"})
        env = dict(x.split("=", 1) for x in self.inside("look", "env").splitlines() if "=" in x)
        self.assertTrue(env["LD_PRELOAD"].startswith("/opt/sluice/lib/libsluice.so"))
        self.assertEqual(self.inside("look", "ls", "/opt/sluice/lib").split(), ["libsluice.so", "libsluice_engine.so"])
        # The device cgroup lets the allocated nodes through (no driver behind them: ENXIO), and nothing else (EPERM).
        script = "for d in /dev/nvidia[0-9]*; do (true <$d) 2>&1; done"
        output = self.inside("look", "bash", "-c", script + "; true")
        self.assertEqual(output.count("No such device"), 1, output)
        major = os.major(os.stat(os.environ["CLUSTER_GPU"] + "/dev/nvidia0").st_rdev)
        others = set(range(3, 5)) - {int(self.inside("look", "bash", "-c", "stat -c %T /dev/nvidia[0-9]*"), 16)}
        script = f"mknod /tmp/other c {major} {others.pop()} && (true </tmp/other) 2>&1; true"
        self.assertIn("Operation not permitted", self.inside("look", "bash", "-c", script))
        # Read-only: the user's program cannot change the libraries that other containers load.
        self.assertIn("Read-only", self.inside("look", "bash", "-c", "touch /opt/sluice/lib/x 2>&1; true"))

    def test_a_third_tenant_waits_and_gets_its_turn(self):
        for name in ("first", "second", "big"):
            self.start(name, {"sluice.dev/gpu-fraction": "1" if name == "big" else "0.5"})
        p.apply(p.idle_pod("third", {"sluice.dev/gpu-fraction": "0.2"}), SPACE)
        time.sleep(2)
        self.assertEqual(p.phase("third", SPACE), "Pending")
        cards = {
            n: p.kubectl("-n", SPACE, "exec", n, "--", "bash", "-c", "ls /dev/nvidia[0-9]*").strip()
            for n in ("first", "second", "big")
        }
        self.assertEqual(cards["first"], cards["second"], "halves are packed on one card")
        self.assertNotEqual(cards["first"], cards["big"])
        p.kubectl("-n", SPACE, "delete", "pod", "first", "--force", "--grace-period=0")
        p.wait(120, "third to run", lambda: p.phase("third", SPACE) == "Running")

    def test_a_wrong_annotation_is_denied_where_it_is_written(self):
        template = p.idle_pod("x", {"sluice.dev/gpu-fraction": "1.5"})
        labels = {"app": "wrong"}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "wrong"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"annotations": template["metadata"]["annotations"], "labels": labels},
                    "spec": {"containers": template["spec"]["containers"]},
                },
            },
        }
        result = p.apply(deployment, SPACE, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("1.5", result.stderr)
        result = p.apply(p.idle_pod("typo", {"sluice.dev/gpu-fracton": "0.5"}), SPACE, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("gpu-fracton", result.stderr)

    def test_settings_of_a_running_pod(self):
        self.start("live", {"sluice.dev/gpu-fraction": "0.3"})
        p.kubectl("-n", SPACE, "annotate", "pod", "live", "sluice.dev/log-level=DEBUG")
        result = p.run(
            "kubectl",
            "-n",
            SPACE,
            "annotate",
            "--overwrite",
            "pod",
            "live",
            "sluice.dev/visible-memory=limit",
            check=False,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("log-level", result.stderr)  # the list of changeable settings

    def granted(self, name):
        pod = p.get("-n", SPACE, "pod", name)
        return json.loads(pod["metadata"]["annotations"].get("sluice.dev/granted", "{}")).get("main")

    def resize(self, name, fraction, check=True):
        change = f"sluice.dev/gpu-fraction={fraction}"
        return p.run("kubectl", "-n", SPACE, "annotate", "--overwrite", "pod", name, change, check=check)

    def events(self, name, reason):
        found = p.get("-n", SPACE, "events", "--field-selector", f"involvedObject.name={name},reason={reason}")
        return " ".join(event["message"] for event in found["items"])

    def test_another_size_of_a_running_pod(self):
        self.start("whole", {"sluice.dev/gpu-fraction": "1"})
        self.start("one", {"sluice.dev/gpu-fraction": "0.5"})
        self.start("two", {"sluice.dev/gpu-fraction": "0.2"})

        def share(name):
            found = [a for a in p.agent_status()["allocations"] if a["pod"] == name]
            return found[0]["gpus"][0]["percent"] if found else None

        def free():
            node = p.get("node", os.environ["CLUSTER_NODE"])
            return sorted(c["free"] for c in json.loads(node["metadata"]["annotations"]["sluice.dev/gpus"]))

        p.wait(30, "the free units of the start", lambda: free() == [0, 30])
        self.resize("one", "0.6")
        p.wait(30, "growth", lambda: share("one") == 60)
        p.wait(30, "the pod's answer", lambda: self.granted("one") == {"percent": 60, "requested": 60})
        p.wait(30, "the node's annotation", lambda: free() == [0, 20])
        p.wait(30, "the Event", lambda: "has 0.6 of GPU" in self.events("one", "SluiceResized"))
        p.wait(60, "the default scheduler's view", lambda: p.offered() == 190)
        self.start("fits", {"sluice.dev/gpu-fraction": "0.05"})
        p.apply(p.idle_pod("late", {"sluice.dev/gpu-fraction": "0.2"}), SPACE)  # kubelet itself has 25 units left
        # More than there is: the rest as an Event, and when it is free.
        self.resize("one", "0.9")
        p.wait(30, "what there is", lambda: self.granted("one") == {"percent": 75, "requested": 90})
        p.wait(30, "the Event", lambda: "requests 0.9" in self.events("one", "SluiceResizeWaits"))
        self.assertEqual(p.phase("late", SPACE), "Pending")
        # Kubelet tells the API server of withheld units within ten seconds. Until then the scheduler would bind "late"
        # to the units of the pod that ends here, and kubelet refuse it.
        p.wait(60, "the default scheduler's view of the growth", lambda: p.offered() == 175)
        p.kubectl("-n", SPACE, "delete", "pod", "fits", "--force", "--grace-period=0")
        p.wait(60, "the units of the pod that ended", lambda: self.granted("one")["percent"] == 80)
        self.assertEqual(p.phase("late", SPACE), "Pending")
        # Wrong sizes are denied with the sentences of the creation.
        for wrong, output in {"1.5": "0.01 to 1 in steps of 0.01", "2": "runs on 1 GPU"}.items():
            result = self.resize("one", wrong, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(output, result.stderr)
        # Back to its own units: the pod that waits starts.
        self.resize("one", "0.5")
        p.wait(60, "the waiting pod", lambda: p.phase("late", SPACE) == "Running")
        self.assertEqual(share("one"), 50)
        p.wait(60, "all units", lambda: p.offered() == 200)

    def test_a_restricted_namespace(self):
        p.kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/enforce=restricted")
        try:
            container = {
                "name": "main",
                "image": os.environ["CLUSTER_BASE"],
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000000"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
            self.start(
                "strict",
                {"sluice.dev/gpu-fraction": "0.1"},
                containers=[container],
                securityContext={"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            )
            self.assertIn("libsluice.so", self.inside("strict", "env"))
        finally:
            p.kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/enforce-")

    def test_an_image_with_its_own_preload_job_and_init_container(self):
        image = os.environ["CLUSTER_BASE"]
        show = {"image": image, "imagePullPolicy": "Never", "command": ["bash", "-c", "echo preload $LD_PRELOAD"]}
        p.apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "batch"},
                "spec": {
                    "template": {
                        "metadata": {
                            "annotations": {
                                "gpu-fraction.sluice.dev/init": "0.2",
                                "gpu-fraction.sluice.dev/main": "0.2",
                            }
                        },
                        "spec": {
                            "restartPolicy": "Never",
                            "initContainers": [{"name": "init", **show}],
                            "containers": [
                                {"name": "main", **show, "env": [{"name": "LD_PRELOAD", "value": "/usr/lib/mine.so"}]}
                            ],
                        },
                    }
                },
            },
            SPACE,
        )
        p.kubectl("-n", SPACE, "wait", "--for=condition=Complete", "job/batch", "--timeout=120s")
        for container, preload in {
            "init": "/opt/sluice/lib/libsluice.so",
            "main": "/opt/sluice/lib/libsluice.so:/usr/lib/mine.so",
        }.items():
            # containerd copies a container's output, on a busy machine after its end.
            logs = lambda c=container: p.kubectl("-n", SPACE, "logs", "job/batch", "-c", c)
            p.wait(20, f"{container} to have LD_PRELOAD {preload}", lambda w=preload: f"preload {w}\n" in logs())

    def test_quota(self):
        p.apply(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "gpu"},
                "spec": {"hard": {"requests.sluice.dev/gpu-percent": "40"}},
            },
            SPACE,
        )
        p.wait(60, "the quota", lambda: "hard" in p.get("-n", SPACE, "resourcequota", "gpu").get("status", {}))
        self.start("within", {"sluice.dev/gpu-fraction": "0.4"})
        result = p.apply(p.idle_pod("beyond", {"sluice.dev/gpu-fraction": "0.1"}), SPACE, check=False)
        self.assertIn("exceeded quota", result.stderr)

    def test_without_the_webhook_nothing_runs_unlimited_and_other_pods_start(self):
        p.kubectl("-n", p.SPACE, "scale", "deployment", "sluice-webhook", "--replicas=0")
        try:
            p.kubectl(
                "-n",
                p.SPACE,
                "wait",
                "--for=delete",
                "pod",
                "-l",
                "app.kubernetes.io/component=webhook",
                "--timeout=120s",
            )
            result = p.apply(p.idle_pod("unseen", {"sluice.dev/gpu-fraction": "0.5"}), SPACE, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("webhook", result.stderr)
            self.start("other", {})
        finally:
            p.kubectl("-n", p.SPACE, "scale", "deployment", "sluice-webhook", "--replicas=2")
            p.kubectl("-n", p.SPACE, "rollout", "status", "deployment/sluice-webhook", "--timeout=120s")

    def test_all_parts_killed_in_turn(self):
        self.start("survivor", {"sluice.dev/gpu-fraction": "0.5"})
        p.kill_in_pods("sluice-webhook")
        for part in ("sluice-agent", "sluice-device-plugin"):
            before = self.restarts()
            p.kill_in_pods(part)
            p.wait(120, f"{part} to be back", lambda: self.restarts() > before and p.offered() == 200)
        p.run(p.CLUSTER, "restart", "kubelet")
        p.wait(120, "the units to be offered again", lambda: p.offered() == 200)
        self.assertEqual(p.phase("survivor", SPACE), "Running")
        p.wait(
            120,
            "the agent to serve again",
            lambda: p.in_agent("/usr/bin/sluice", "status", "--run-dir", p.run_dir(), check=False).returncode == 0,
        )
        log = self.run_training("after", {"sluice.dev/gpu-fraction": "0.5"})
        self.assertTrue(exit_line.attached(log), log)

    def restarts(self):
        pod = p.get("-n", p.SPACE, "pod", p.node_pod())
        return sum(c["restartCount"] for c in pod["status"].get("containerStatuses", []))

    def test_upgrade_keeps_running_pods_and_the_certificate(self):
        self.start("steady", {"sluice.dev/gpu-fraction": "0.5"})
        before = p.get("-n", SPACE, "pod", "steady")
        secret = p.get("-n", p.SPACE, "secret", "sluice-webhook-tls")["data"]
        p.install("--set", "agent.notHooked=evict", "--set", "webhook.assumedGpuMemory=16Gi")
        p.wait(120, "units after the upgrade", lambda: p.offered() == 200)
        self.assertEqual(p.get("-n", p.SPACE, "secret", "sluice-webhook-tls")["data"], secret)
        self.start("new", {"sluice.dev/gpu-fraction": "0.2"})
        p.helm("rollback", "sluice", "-n", p.SPACE, "--wait", "--timeout", "120s")
        p.wait(120, "units after the rollback", lambda: p.offered() == 200)
        self.start("newer", {"sluice.dev/gpu-fraction": "0.2"})
        after = p.get("-n", SPACE, "pod", "steady")
        self.assertEqual(after["metadata"]["uid"], before["metadata"]["uid"])
        self.assertEqual(after["status"]["containerStatuses"][0]["restartCount"], 0)

    def test_helm_test(self):
        p.helm("test", "sluice", "-n", p.SPACE, "--timeout", "60s")
        p.kubectl("-n", p.SPACE, "delete", "pod", "sluice-test", "--force", "--grace-period=0")

    def test_fifty_pods_at_once(self):
        pods = [p.idle_pod(f"many-{i}", {"sluice.dev/gpu-fraction": "0.04"}) for i in range(50)]
        start = time.monotonic()
        p.apply({"apiVersion": "v1", "kind": "List", "items": pods}, SPACE)
        p.wait(
            180,
            "50 pods to run",
            lambda: sum(x["status"]["phase"] == "Running" for x in p.get("-n", SPACE, "pods")["items"]) == 50,
        )
        print(f"50 pods of 0.04 on two cards: {time.monotonic() - start:.1f} s")

    def test_examples_pass_the_real_admission_chain(self):
        files = sorted(EXAMPLES.glob("*.yaml"))
        self.assertTrue(files)
        for file in files:
            with self.subTest(file.name):
                output = p.kubectl("-n", SPACE, "create", "--dry-run=server", "-f", file)
                self.assertIn("created (server dry run)", output)


if __name__ == "__main__":
    p.require()
    unittest.main()
