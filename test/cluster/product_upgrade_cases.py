"""Upgrade, uninstall, drain, and every mode of the chart; product_life_test.py runs these cases."""

import base64
import json
import os

import exit_line
import product as p
import yaml
from product_test import SPACE


class Upgrades:
    """Cases of product_life_test.Life, which has `install` and the pods' helpers."""

    def library_of(self, name):
        """The folder on the host that holds the library which a container loads."""
        mounts = p.kubectl("-n", SPACE, "exec", name, "--", "grep", "/opt/sluice/lib", "/proc/self/mountinfo")
        return mounts.split()[3]

    def restart_container(self, name):
        before = self.restart_count(name)
        p.run("kubectl", "-n", SPACE, "exec", name, "--", "bash", "-c", "kill 1", check=False)
        p.wait(
            120,
            f"{name} to be restarted",
            lambda: self.restart_count(name) > before and p.phase(name, SPACE) == "Running",
        )
        p.wait(
            90,
            f"{name} to be there",
            lambda: p.run("kubectl", "-n", SPACE, "exec", name, "--", "true", check=False).returncode == 0,
        )

    def test_upgrade_to_another_build_and_back(self):
        # bash as the first process ends on SIGTERM only with a handler.
        container = {
            **p.idle_pod("", {})["spec"]["containers"][0],
            "command": ["bash", "-c", "trap 'exit 1' TERM; while :; do sleep 0.2; done"],
        }
        self.start("steady", {"sluice.dev/gpu-fraction": "0.5"}, restartPolicy="Always", containers=[container])
        before, given = p.get("-n", SPACE, "pod", "steady"), self.library_of("steady")
        secret = p.get("-n", p.SPACE, "secret", "sluice-webhook-tls")["data"]
        self.install("--set", "image.tag=other")
        p.wait(120, "units after the upgrade", lambda: p.offered() == 200)
        self.assertEqual(p.get("-n", p.SPACE, "secret", "sluice-webhook-tls")["data"], secret)
        self.assertEqual(self.restart_count("steady"), 0)
        self.start("new", {"sluice.dev/gpu-fraction": "0.2"}, restartPolicy="Always", containers=[container])
        self.assertNotEqual(self.library_of("new"), given)
        self.restart_container("steady")
        self.assertEqual(self.library_of("steady"), given)
        self.assertIn("libsluice.so", self.inside("steady", "env"))
        # One part newer than the other, both ways.
        p.kubectl("-n", p.SPACE, "set", "image", "deployment/sluice-webhook", f"webhook=sluice.test/sluice:{p.VERSION}")
        p.kubectl("-n", p.SPACE, "rollout", "status", "deployment/sluice-webhook", "--timeout=120s")
        self.assertTrue(exit_line.attached(self.run_training("older-webhook", {"sluice.dev/gpu-fraction": "0.2"})))
        p.helm("rollback", "sluice", "-n", p.SPACE, "--wait", "--timeout", "120s")
        p.wait(120, "units after the rollback", lambda: p.offered() == 200)
        p.kubectl("-n", p.SPACE, "set", "image", "deployment/sluice-webhook", "webhook=sluice.test/sluice:other")
        p.kubectl("-n", p.SPACE, "rollout", "status", "deployment/sluice-webhook", "--timeout=120s")
        self.assertTrue(exit_line.attached(self.run_training("newer-webhook", {"sluice.dev/gpu-fraction": "0.2"})))
        p.kubectl("-n", p.SPACE, "set", "image", "deployment/sluice-webhook", f"webhook=sluice.test/sluice:{p.VERSION}")
        p.kubectl("-n", p.SPACE, "rollout", "status", "deployment/sluice-webhook", "--timeout=120s")
        self.restart_container("new")
        after = p.get("-n", SPACE, "pod", "steady")
        self.assertEqual((after["metadata"]["uid"], self.restart_count("steady")), (before["metadata"]["uid"], 1))
        self.assertEqual(p.get("-n", p.SPACE, "secret", "sluice-webhook-tls")["data"], secret)

    def test_uninstall_keeps_the_library_of_running_pods(self):
        self.start("left", {"sluice.dev/gpu-fraction": "0.5"})
        library = self.library_of("left")
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait", "--timeout", "60s")
        try:
            self.assertEqual(p.phase("left", SPACE), "Running")
            self.assertIn("libsluice.so", self.inside("left", "ls", "/opt/sluice/lib"))
            self.assertEqual(self.library_of("left"), library)
            everywhere = (
                "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
                "mutatingwebhookconfigurations,validatingwebhookconfigurations"
            )
            left = lambda: (
                p.kubectl("get", everywhere, "-l", "app.kubernetes.io/name=sluice", "-o", "name")
                + p.kubectl(
                    "-n",
                    p.SPACE,
                    "get",
                    "all,configmaps,secrets,serviceaccounts",
                    "-l",
                    "app.kubernetes.io/name=sluice",
                    "-o",
                    "name",
                )
                + "".join(x for x in os.listdir("/var/lib/kubelet/device-plugins") if x.startswith("sluice"))
            )
            p.wait(90, "nothing to be left", lambda: left() == "")
            self.start("plain", {})  # pods without annotations still start
        finally:
            self.install()
            p.wait(120, "units again", lambda: p.offered() == 200)
            p.kubectl(
                "-n",
                p.SPACE,
                "wait",
                "--for=condition=Ready",
                "pods",
                "-l",
                "app.kubernetes.io/component=node",
                "--timeout=120s",
            )
        self.assertEqual(p.phase("left", SPACE), "Running")
        p.wait(60, "the agent to know it again", lambda: self.allocation("left")["gpus"][0]["units"] == 50)

    def test_every_mode_passes_the_real_api_server(self):
        ca = base64.b64encode(p.get("-n", p.SPACE, "configmap", "kube-root-ca.crt")["data"]["ca.crt"].encode()).decode()
        own = (
            "webhook.certificate.mode=secret",
            "webhook.certificate.secretName=mine",
            "webhook.certificate.caBundle=" + ca,
        )
        for settings in (
            (),
            ("webhook.certificate.mode=helm",),
            own,
            ("webhook.certificate.mode=cert-manager",),
            ("scheduler.mode=own", "scheduler.replicas=2"),
            ("scheduler.mode=cluster",),
            (
                "agent.notHooked=evict",
                "webhook.removeRefused.enabled=true",
                "monitoring.dashboard=true",
                "webhook.aliases=true",
            ),
            ("driver.access=own", "driver.root=/opt/driver", "node.affinity=nfd", "webhook.failurePolicy=Fail"),
            ("driver.access=nvidia-runtime", "driver.runtimeClassName=nvidia", "node.affinity=gpu-operator"),
        ):
            with self.subTest(settings):
                text = p.helm(
                    "template",
                    "other",
                    p.ROOT / "charts" / "sluice",
                    "-n",
                    p.SPACE,
                    "--skip-tests",
                    *[x for s in settings for x in ("--set", s)],
                )
                # cert-manager's and Prometheus' own kinds are not known here.
                objects = [
                    o
                    for o in yaml.safe_load_all(text)
                    if o and o["apiVersion"].split("/")[0] not in ("cert-manager.io", "monitoring.coreos.com")
                ]
                output = p.run(
                    "kubectl",
                    "create",
                    "--dry-run=server",
                    "-f",
                    "-",
                    text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
                )
                self.assertEqual(
                    output.stdout.count("created (server dry run)"), len(objects), output.stdout + output.stderr
                )
                self.assertNotIn("Warning", output.stderr)

    def test_the_node_is_drained_of_gpu_pods(self):
        labels = {"app": "served"}
        spec = p.idle_pod("", {})["spec"]
        p.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "served"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels, "annotations": {"sluice.dev/gpu-fraction": "0.5"}},
                        "spec": {k: v for k, v in spec.items() if k != "restartPolicy"},
                    },
                },
            },
            SPACE,
        )
        running = lambda: [
            x["metadata"]["name"]
            for x in p.get("-n", SPACE, "pods")["items"]
            if x["status"]["phase"] == "Running" and "deletionTimestamp" not in x["metadata"]
        ]
        first = p.wait(120, "its pod", running)
        node = os.environ["CLUSTER_NODE"]
        p.kubectl("cordon", node)
        try:
            p.kubectl(
                "drain",
                node,
                "--pod-selector=app=served",
                "--timeout=120s",
                "--ignore-daemonsets",
                "--delete-emptydir-data",
            )
            self.assertEqual(running(), [])
            p.wait(60, "all units to be free", lambda: self.free_units() == 200)
        finally:
            p.kubectl("uncordon", node)
        self.assertNotEqual(p.wait(120, "its next pod", running), first)
