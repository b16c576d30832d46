"""The privileges that the chart's pods request; chart_test.py runs these cases."""

import unittest

from chart_rig import containers, node_pod, one, pod_of, render


class Privileges(unittest.TestCase):
    """The rights of each part. A change here changes the security model: docs/operate/security.md gives the reasons."""

    def test_every_container_is_locked(self):
        objects = render()
        for pod in [pod_of(one(objects, "DaemonSet")), pod_of(one(objects, "Deployment")), one(objects, "Pod")["spec"]]:
            for c in containers(pod):
                with self.subTest(c["name"]):
                    context = c["securityContext"]
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                    self.assertIs(context["allowPrivilegeEscalation"], False)
                    self.assertIs(context["readOnlyRootFilesystem"], True)
                    self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
                    self.assertNotIn("privileged", context)
                    self.assertIn("limits", c["resources"])

    def test_node_pod(self):
        pod = node_pod()
        self.assertIs(pod["hostPID"], True)
        self.assertEqual(pod["securityContext"], {"seLinuxOptions": {"type": "spc_t"}})
        self.assertNotIn("securityContext", node_pod("node.seLinuxType="))
        self.assertNotIn("hostNetwork", pod)
        self.assertNotIn("hostIPC", pod)
        self.assertEqual(
            {c["name"]: c["securityContext"]["runAsUser"] for c in containers(pod)},
            {"install": 0, "device-plugin": 0, "agent": 0},
        )
        self.assertEqual(
            {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v},
            {
                "/var/lib/sluice",
                "/run/sluice",
                "/var/run/cdi",
                "/etc/cdi",
                "/var/lib/kubelet/device-plugins",
                "/var/lib/kubelet/pod-resources",
                "/var/lib/kubelet/pods",
                "/sys/fs/cgroup",
            },
        )
        # The token is the agent's alone.
        self.assertEqual(
            [c["name"] for c in containers(pod) for m in c["volumeMounts"] if m["name"] == "api-token"], ["agent"]
        )
        writable = {
            (c["name"], m["mountPath"]) for c in containers(pod) for m in c["volumeMounts"] if not m.get("readOnly")
        }
        self.assertEqual(
            writable,
            {
                ("install", "/var/lib/sluice"),
                ("device-plugin", "/var/lib/sluice"),
                ("device-plugin", "/run/sluice"),
                ("device-plugin", "/var/run/cdi"),
                ("device-plugin", "/var/lib/kubelet/device-plugins"),
                ("agent", "/var/lib/sluice"),
                ("agent", "/run/sluice"),
            },
        )

    def test_the_node_pod_is_privileged_only_where_it_opens_the_cards_itself(self):
        own = ("driver.access=own", "driver.root=/usr/local/nvidia")
        for settings, privileged in (
            (own, True),
            ((*own, "driver.deviceRoot=/cards"), False),
            ((*own, "driver.deviceRoot=/cards", "driver.privileged=always"), True),
            ((*own, "driver.privileged=never"), False),
            # With CDI specs alone, and without NVIDIA's runtime, nothing else brings NVML to the node's pod.
            (("driver.access=nvidia-cdi", "driver.privileged=always"), False),
            (("driver.access=nvidia-cdi", "driver.root=/usr"), True),
            (("driver.access=nvidia-cdi", "driver.root=/usr", "driver.deviceRoot=/cards"), False),
            (("driver.access=nvidia-cdi", "driver.root=/usr", "driver.privileged=never"), False),
            (("driver.access=nvidia-cdi", "driver.root=/usr", "driver.runtimeClassName=nvidia"), False),
            (("driver.access=nvidia-runtime", "driver.root=/usr", "driver.runtimeClassName=nvidia"), False),
        ):
            pod = node_pod(*settings)
            with self.subTest(settings):
                self.assertEqual(
                    {c["name"]: c["securityContext"].get("privileged", False) for c in containers(pod)},
                    {"install": False, "device-plugin": privileged, "agent": privileged},
                )
                for c in containers(pod):
                    self.assertIs(c["securityContext"]["readOnlyRootFilesystem"], True)
                    # Over a container's own /dev, a mount leaves no place for its /dev/termination-log.
                    self.assertNotIn("/dev", [m["mountPath"] for m in c["volumeMounts"]])

    def test_webhook_pod(self):
        pod = pod_of(one(render(), "Deployment"))
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        self.assertFalse([v for v in pod["volumes"] if "hostPath" in v])
        for key in ("hostPID", "hostNetwork", "hostIPC"):
            self.assertNotIn(key, pod)

    def test_rights(self):
        objects = render()
        agent = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        ]
        self.assertEqual(one(objects, "ClusterRole", "sluice-node")["rules"], agent)
        self.assertEqual(
            one(render("agent.notHooked=evict"), "ClusterRole", "sluice-node")["rules"],
            agent + [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}],
        )
        self.assertEqual(
            one(objects, "ClusterRole", "sluice-webhook")["rules"],
            [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                {
                    "apiGroups": ["admissionregistration.k8s.io"],
                    "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
                    "resourceNames": ["sluice"],
                    "verbs": ["get", "update", "patch"],
                },
            ],
        )
        self.assertEqual(
            one(objects, "Role")["rules"],
            [
                {
                    "apiGroups": [""],
                    "resources": ["secrets"],
                    "resourceNames": ["sluice-webhook-tls"],
                    "verbs": ["get", "update", "patch"],
                }
            ],
        )
        self.assertIs(one(objects, "ServiceAccount", "sluice-node")["automountServiceAccountToken"], False)
        # A certificate that others make needs none of the rights to write it.
        objects = render("webhook.certificate.mode=helm")
        self.assertEqual(len(one(objects, "ClusterRole", "sluice-webhook")["rules"]), 1)
        self.assertFalse([o for o in objects if o["kind"] == "Role"])
