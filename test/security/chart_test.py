#!/usr/bin/env python3
"""Access that the chart grants and denies: metrics, driver limits, policy. Needs helm; skips as the chart tests do."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

import yaml
from chart_rig import containers, node_pod, one, render

CLOSED = "metrics.authentication=kubernetes"


def agent(*settings):
    return next(c for c in containers(node_pod(*settings)) if c["name"] == "agent")


def configuration(*settings):
    return yaml.safe_load(one(render(*settings), "ConfigMap", "sluice")["data"]["agent.yaml"])


class DriverLimits(unittest.TestCase):
    """The driver's limits (615 and later) are set for cgroups, which the agent finds in the host's tree alone."""

    def test_the_agent_alone_reads_the_hosts_cgroups(self):
        pod = node_pod()
        volume = next(v for v in pod["volumes"] if v["name"] == "cgroups")
        self.assertEqual(volume["hostPath"], {"path": "/sys/fs/cgroup", "type": "Directory"})
        mounts = {c["name"]: m for c in containers(pod) for m in c["volumeMounts"] if m["name"] == "cgroups"}
        # Where the agent looks (attestation.cgroup_root): its default.
        self.assertEqual(mounts, {"agent": {"name": "cgroups", "mountPath": "/sys/fs/cgroup", "readOnly": True}})
        self.assertIs(configuration()["attestation"]["driver_limits"], True)
        self.assertNotIn("cgroup_root", configuration()["attestation"])

    def test_without_them_nothing_of_the_host_is_mounted(self):
        off = "agent.driverLimits=false"
        pod = node_pod(off)
        self.assertNotIn("cgroups", [v["name"] for v in pod["volumes"]])
        self.assertNotIn("cgroups", [m["name"] for c in containers(pod) for m in c["volumeMounts"]])
        self.assertIs(configuration(off)["attestation"]["driver_limits"], False)


class Policy(unittest.TestCase):
    def test_kubelets_folders_are_protected_wherever_they_are(self):
        def paths(*settings):
            return yaml.safe_load(one(render(*settings), "ConfigMap", "sluice")["data"]["webhook.yaml"])["nodePaths"]

        self.assertEqual(paths(), ["/var/lib/sluice", "/run/sluice", "/var/lib/kubelet"])
        self.assertIn("/data/kubelet", paths("kubelet.rootDir=/data/kubelet"))

    def test_containers_that_are_added_to_a_running_pod_are_judged(self):
        webhooks = one(render(), "ValidatingWebhookConfiguration", "sluice")["webhooks"]
        added = next(w for w in webhooks if w["name"] == "ephemeral.sluice.dev")
        self.assertEqual(added["rules"][0]["resources"], ["pods/ephemeralcontainers"])
        self.assertEqual(added["rules"][0]["operations"], ["UPDATE"])
        self.assertIn("sluice.dev/injected", added["matchConditions"][0]["expression"])


class Metrics(unittest.TestCase):
    def test_open_metrics_need_no_right(self):
        objects = render()
        self.assertEqual(configuration()["metrics"], {"listen": ":9402"})
        rights = [r for o in objects if o["kind"] == "ClusterRole" for r in o["rules"]]
        self.assertFalse([r for r in rights if "tokenreviews" in r.get("resources", []) or "nonResourceURLs" in r])
        self.assertFalse([o for o in objects if o["kind"] == "NetworkPolicy"])
        for probe in ("readinessProbe", "livenessProbe"):
            get = agent()[probe]["httpGet"]
            self.assertEqual((get["path"], get["scheme"]), ("/healthz", "HTTP"))

    def test_closed_metrics_have_the_rights_that_they_need_and_no_more(self):
        objects = render(CLOSED)
        self.assertEqual(configuration(CLOSED)["metrics"], {"listen": ":9402", "authentication": "kubernetes"})
        self.assertEqual(
            one(objects, "ClusterRole", "sluice-node-metrics")["rules"],
            [
                {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
                {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            ],
        )
        bound = one(objects, "ClusterRoleBinding", "sluice-node-metrics")
        self.assertEqual([s["name"] for s in bound["subjects"]], ["sluice-node"])
        reader = one(objects, "ClusterRole", "sluice-metrics-reader")["rules"]
        self.assertEqual(reader, [{"nonResourceURLs": ["/metrics", "/status.json"], "verbs": ["get"]}])
        bindings = [o["roleRef"]["name"] for o in objects if o["kind"] == "ClusterRoleBinding"]
        self.assertNotIn("sluice-metrics-reader", bindings)
        self.assertEqual(agent(CLOSED)["livenessProbe"]["httpGet"]["scheme"], "HTTPS")

    def test_a_certificate_of_the_operators_own(self):
        settings = (CLOSED, "metrics.certificateSecret=mine")
        metrics = configuration(*settings)["metrics"]
        self.assertEqual(
            (metrics["certificate"], metrics["key"]), ("/etc/sluice-metrics/tls.crt", "/etc/sluice-metrics/tls.key")
        )
        mounts = {m["name"]: m["mountPath"] for m in agent(*settings)["volumeMounts"]}
        self.assertEqual(mounts["metrics-certificate"], "/etc/sluice-metrics")
        volumes = {v["name"]: v for v in node_pod(*settings)["volumes"]}
        self.assertEqual(volumes["metrics-certificate"]["secret"], {"secretName": "mine"})
        self.assertNotIn("metrics-certificate", [v["name"] for v in node_pod()["volumes"]])

    def test_the_network_policy_admits_the_given_peers_alone(self):
        on = "metrics.networkPolicy.enabled=true"
        self.assertEqual(one(render(on), "NetworkPolicy")["spec"]["ingress"], [])
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        spec = one(render(on, values={"metrics.networkPolicy.from": [peer]}), "NetworkPolicy")["spec"]
        self.assertEqual(spec["ingress"][0]["from"], [peer])
        self.assertEqual({p["port"] for p in spec["ingress"][0]["ports"]}, {"metrics", "plugin"})
        self.assertEqual(spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"], "node")

    def test_the_scrapers_token(self):
        settings = (CLOSED, "monitoring.serviceMonitor=true", "metrics.tokenSecret.name=t", "metrics.tokenSecret.key=k")
        monitor = one(render(*settings), "PodMonitor")["spec"]["podMetricsEndpoints"][0]
        self.assertEqual((monitor["scheme"], monitor["port"]), ("https", "metrics"))
        self.assertEqual(monitor["authorization"], {"type": "Bearer", "credentials": {"name": "t", "key": "k"}})
        plain = one(render("monitoring.serviceMonitor=true"), "PodMonitor")["spec"]["podMetricsEndpoints"]
        self.assertEqual(plain, [{"port": "metrics"}, {"port": "plugin"}])

    def test_wrong_values_are_refused(self):
        for wrong in ("metrics.authentication=basic", "metrics.certificateSecret=A B", "metrics.unknown=1"):
            with self.subTest(wrong), self.assertRaises(AssertionError):
                render(wrong)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
