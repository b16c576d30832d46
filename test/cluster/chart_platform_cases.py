"""The chart's objects for the clusters that people have: paths, networks, ids, nodes, quotas.

chart_test.py runs these cases.
"""

import json
import tempfile
import unittest

import yaml
from chart_rig import CHART, config, containers, node_pod, one, pod_of, render, run

WORKLOADS = ("DaemonSet", "Deployment")
OWN = "scheduler.mode=own"


def pods(objects):
    """Every pod that the release makes, by name."""
    found = {o["metadata"]["name"]: pod_of(o) for o in objects if o["kind"] in WORKLOADS}
    found.update({o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "Pod"})
    return found


def with_file(text, *arguments):
    """`helm template -f FILE`, as people write values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(text)
        f.flush()
        return run("template", "sluice", CHART, "--namespace", "sluice-system", "-f", f.name, *arguments)


def rendered(text, *arguments):
    result = with_file(text, *arguments)
    assert result.returncode == 0, result.stderr
    return [d for d in yaml.safe_load_all(result.stdout) if d]


def host_paths(pod):
    return {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}


class KubeletFolders(unittest.TestCase):
    def check(self, objects, root, plugins, resources=None, pods_dir=None):
        pod = pod_of(one(objects, "DaemonSet"))
        resources, pods_dir = resources or root + "/pod-resources", pods_dir or root + "/pods"
        paths = host_paths(pod)
        self.assertEqual(
            (paths["device-plugins"], paths["pod-resources"], paths["pods"]), (plugins, resources, pods_dir)
        )
        for c in containers(pod):  # the plugin tells kubelet paths that it sees itself
            for m in c["volumeMounts"]:
                self.assertEqual(m["mountPath"], paths.get(m["name"], m["mountPath"]))
        arguments = next(c["args"] for c in pod["containers"] if c["name"] == "device-plugin")
        self.assertEqual(arguments[arguments.index("--kubelet-dir") + 1], plugins)
        plugin, agent = config(objects, "device-plugin.yaml"), config(objects, "agent.yaml")
        self.assertEqual((plugin["podsDir"], plugin["podResourcesSocket"]), (pods_dir, resources + "/kubelet.sock"))
        self.assertEqual(
            (agent["kubernetes"]["kubelet_dir"], agent["pod_resources"]), (plugins, resources + "/kubelet.sock")
        )

    def test_device_plugins_do_not_follow_kubelets_root(self):
        fixed = "/var/lib/kubelet/device-plugins"
        self.check(render(), "/var/lib/kubelet", fixed)
        self.check(rendered("node: {kubeletDir: /var/lib/k0s/kubelet}"), "/var/lib/k0s/kubelet", fixed)
        self.check(rendered("kubelet: {rootDir: /data01/kubelet}"), "/data01/kubelet", fixed)

    def test_platforms(self):
        fixed = "/var/lib/kubelet/device-plugins"
        snap = "/var/snap/microk8s/common/var/lib/kubelet"
        for platform, folders in {
            "k0s": ("/var/lib/k0s/kubelet", fixed),
            "microk8s": (snap, snap + "/device-plugins"),
            "k3s": ("/var/lib/kubelet", fixed),
            "rke2": ("/var/lib/kubelet", fixed),
            "bottlerocket": ("/var/lib/kubelet", fixed),
            "talos": ("/var/lib/kubelet", fixed),
        }.items():
            with self.subTest(platform):
                self.check(render("platform=" + platform), *folders)
        # A value that is set wins.
        self.check(render("platform=k0s", "kubelet.rootDir=/data/k"), "/data/k", fixed)
        self.check(
            render(
                "platform=microk8s",
                "kubelet.devicePluginDir=/a",
                "kubelet.podResourcesDir=/b",
                "kubelet.podsDir=/c",
            ),
            snap,
            "/a",
            "/b",
            "/c",
        )

    def test_two_roots_are_refused(self):
        result = run("template", "s", CHART, "--set", "node.kubeletDir=/a", "--set", "kubelet.rootDir=/b")
        self.assertIn("node.kubeletDir: /a contradicts kubelet.rootDir, /b", result.stderr)
        self.check(render("node.kubeletDir=/a", "kubelet.rootDir=/a"), "/a", "/var/lib/kubelet/device-plugins")

    def test_folders_of_cdi_specs(self):
        def folders(*settings):
            objects = render(*settings)
            paths = host_paths(pod_of(one(objects, "DaemonSet")))
            mounted = sorted(p for name, p in paths.items() if name.startswith("cdi"))
            self.assertEqual(sorted(config(objects, "device-plugin.yaml")["cdiSearchDirs"]), mounted)
            return mounted

        self.assertEqual(folders(), ["/etc/cdi", "/var/run/cdi"])
        self.assertEqual(folders("node.cdiDir=/etc/cdi"), ["/etc/cdi"])
        self.assertEqual(folders("platform=talos"), ["/var/run/cdi"])  # its /etc is read-only
        self.assertEqual(
            folders("platform=talos", "node.cdiDir=/var/cdi/dynamic", "node.cdiSearchDirs={/var/cdi/static}"),
            ["/var/cdi/dynamic", "/var/cdi/static"],
        )


class Networks(unittest.TestCase):
    def test_every_listener_serves_both_families(self):
        objects = render(OWN)
        self.assertNotIn("0.0.0.0", json.dumps(objects))
        self.assertEqual(config(objects, "device-plugin.yaml")["metricsAddress"], ":9401")
        self.assertEqual(config(objects, "agent.yaml")["metrics"]["listen"], ":9402")
        arguments = pod_of(one(objects, "Deployment", "sluice-webhook"))["containers"][0]["args"]
        self.assertIn("--listen=:8443", arguments)
        self.assertIn("--metrics-listen=:9403", arguments)
        extender = yaml.safe_load(one(objects, "ConfigMap", "sluice-scheduler")["data"]["extender.yaml"])
        self.assertEqual(extender["metricsListen"], ":9404")

    def test_the_webhook_on_the_hosts_network(self):
        pod = pods(render())["sluice-webhook"]
        self.assertNotIn("hostNetwork", pod)
        objects = rendered("webhook: {hostNetwork: true, port: 10260, metricsPort: 10261}")
        deployment = one(objects, "Deployment")
        pod = pod_of(deployment)
        self.assertEqual((pod["hostNetwork"], pod["dnsPolicy"]), (True, "ClusterFirstWithHostNet"))
        self.assertEqual([p["containerPort"] for p in pod["containers"][0]["ports"]], [10260, 10261])
        self.assertIn("--listen=:10260", pod["containers"][0]["args"])
        # A new pod would wait for a port that the old one holds.
        self.assertEqual(deployment["spec"]["strategy"]["rollingUpdate"], {"maxUnavailable": 1, "maxSurge": 0})
        service = [o for o in objects if o["kind"] == "Service"]
        self.assertEqual(service[0]["spec"]["ports"][0], {"name": "https", "port": 443, "targetPort": "https"})

    def test_port_collisions_are_refused_with_a_sentence(self):
        for settings, words in {
            ("agent.port=9401",): "devicePlugin.port: 9401 is also agent.port",
            ("webhook.metricsPort=8443",): "webhook.port: 8443 is also webhook.metricsPort",
            ("scheduler.metricsPort=8889",): "scheduler.port: 8889 is also scheduler.metricsPort",
            (OWN, "scheduler.port=10259"): "scheduler.port: 10259 is also kube-scheduler's",
            (OWN, "scheduler.metricsPort=10259"): "scheduler.metricsPort: 10259 is also kube-scheduler's",
            ("scheduler.mode=cluster", "scheduler.port=10257"): "kube-controller-manager's",
            ("scheduler.mode=cluster", "scheduler.metricsPort=2379"): "etcd's",
            ("scheduler.mode=cluster", "scheduler.metricsPort=10250"): "kubelet's",
            ("webhook.hostNetwork=true", "webhook.port=10250"): "webhook.port: 10250 is also kubelet's",
            ("webhook.hostNetwork=true", "webhook.metricsPort=10256"): "kube-proxy's",
            ("webhook.hostNetwork=true", "webhook.port=6443"): "kube-apiserver's",
            (
                "webhook.hostNetwork=true",
                "scheduler.mode=cluster",
                "webhook.port=8889",
            ): "scheduler.port: 8889 is also webhook.port",
            (
                "agent.config.metrics.listen=:9999",
            ): "agent.config.metrics.listen: :9999 has another port than agent.port, 9402",
            (
                "devicePlugin.config.metricsAddress=127.0.0.1:1",
            ): "devicePlugin.config.metricsAddress: 127.0.0.1:1 has another",
        }.items():
            with self.subTest(settings):
                result = run("template", "s", CHART, *[x for s in settings for x in ("--set", s)])
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(words, result.stderr)
        # In pods of their own these are free.
        render("webhook.port=10250", OWN, "scheduler.metricsPort=10250", "agent.port=10259")
        render(values={"agent.config": {"metrics": {"listen": "[::]:9402"}}})


class Contradictions(unittest.TestCase):
    def test_values_that_contradict_one_another_are_refused_with_a_sentence(self):
        closed, monitored = "metrics.authentication=kubernetes", "monitoring.serviceMonitor=true"
        for settings, words in {
            ("webhook.certificate.secretName=x",): "secretName: needs webhook.certificate.mode secret",
            ("webhook.certificate.mode=helm", "webhook.certificate.caBundle=eA=="): "caBundle: needs",
            ("webhook.certificate.issuerRef.name=x",): "issuerRef: needs webhook.certificate.mode cert-manager",
            ("webhook.certificate.mode=cert-manager", "webhook.certificate.issuerRef.kind=Issuer"): "has no name",
            ("metrics.certificateSecret=x",): "metrics.certificateSecret: needs metrics.authentication kubernetes",
            ("metrics.tokenSecret.name=x",): "metrics.tokenSecret: needs metrics.authentication kubernetes",
            (closed, monitored): "metrics.tokenSecret: has no name",
            (closed, monitored, "metrics.tokenSecret.name=x"): "metrics.tokenSecret: has no name or no key",
            ("dra.extendedResourceName=sluice.dev/gpu",): "dra.extendedResourceName: needs dra.enabled",
            (OWN, "scheduler.name=default-scheduler"): "scheduler.name: 'default-scheduler' is the cluster's own",
            ("node.runDir=/var/lib/sluice",): "node.runDir: /var/lib/sluice is also node.hostDir",
            ("node.hostDir=/var/lib/kubelet/pods",): "node.hostDir: /var/lib/kubelet/pods is also kubelet's",
            ("kubelet.rootDir=/data", "node.cdiDir=/data"): "node.cdiDir: /data is also kubelet's root folder",
            ("node.updateStrategy.type=Recreate",): "updateStrategy",
            ("webhook.excludedNamespaces={Kube System}",): "excludedNamespaces",
        }.items():
            with self.subTest(settings):
                result = run("template", "s", CHART, *[x for s in settings for x in ("--set", s)])
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(words, result.stderr)
        render("scheduler.name=default-scheduler", "dra.enabled=auto", "dra.extendedResourceName=sluice.dev/gpu")
        render("webhook.certificate.mode=cert-manager", "webhook.certificate.issuerRef.name=x")


class Identities(unittest.TestCase):
    def test_ids_can_be_left_out(self):
        context = pods(rendered("webhook: {podSecurityContext: {runAsUser: null}}"))["sluice-webhook"][
            "securityContext"
        ]
        self.assertEqual(context, {"runAsNonRoot": True, "runAsGroup": 65532, "fsGroup": 65532})
        leave_out = "{podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}}"
        objects = rendered(f"webhook: {leave_out}\nscheduler: {leave_out}\ntest: {leave_out}", "--set", OWN)
        for name in ("sluice-webhook", "sluice-scheduler", "sluice-test"):
            self.assertEqual(pods(objects)[name]["securityContext"], {"runAsNonRoot": True}, name)

    def test_openshift(self):
        objects = render("platform=openshift", OWN)
        self.assertNotIn("65532", json.dumps(objects))
        for name in ("sluice-webhook", "sluice-scheduler", "sluice-test"):
            self.assertEqual(pods(objects)[name]["securityContext"], {"runAsNonRoot": True}, name)
        context = pods(render("platform=openshift", "webhook.podSecurityContext.runAsUser=1001280000"))
        self.assertEqual(context["sluice-webhook"]["securityContext"]["runAsUser"], 1001280000)
        constraints = one(objects, "SecurityContextConstraints")
        self.assertEqual(constraints["users"], ["system:serviceaccount:sluice-system:sluice-node"])
        node = pods(objects)["sluice-node"]
        # The node's pod's rights, and no more.
        self.assertEqual(constraints["allowHostPID"], node["hostPID"])
        for key in (
            "allowHostNetwork",
            "allowHostIPC",
            "allowHostPorts",
            "allowPrivilegedContainer",
            "allowPrivilegeEscalation",
        ):
            self.assertIs(constraints[key], False, key)
        self.assertEqual(constraints["requiredDropCapabilities"], ["ALL"])
        kinds = {next(k for k in v if k != "name") for v in node["volumes"]}
        self.assertEqual(set(constraints["volumes"]), kinds)
        self.assertFalse([o for o in render() if o["kind"] == "SecurityContextConstraints"])


class Nodes(unittest.TestCase):
    def test_linux_alone(self):
        for mode in ("none", "own", "cluster"):
            for name, pod in pods(render("scheduler.mode=" + mode)).items():
                self.assertEqual(pod["nodeSelector"]["kubernetes.io/os"], "linux", name)
        selector = "{nodeSelector: {kubernetes.io/arch: amd64, kubernetes.io/os: linux}}"
        objects = rendered(
            f"node: {selector}\nwebhook: {selector}\nscheduler: {selector}\ntest: {selector}", "--set", OWN
        )
        for name, pod in pods(objects).items():
            self.assertEqual(pod["nodeSelector"], {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}, name)
        # In mode cluster the extender stands beside the cluster's own scheduler.
        extender = pods(render("scheduler.mode=cluster"))["sluice-scheduler"]
        self.assertIn("node-role.kubernetes.io/control-plane", extender["nodeSelector"])

    def test_the_chart_test_reaches_tainted_nodes(self):
        usual = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        self.assertEqual(node_pod()["tolerations"], usual)
        self.assertEqual(pods(render())["sluice-test"]["tolerations"], usual)
        sku = [{"key": "sku", "value": "gpu"}]
        both = pods(render(values={"node.tolerations": sku}))
        self.assertEqual((both["sluice-node"]["tolerations"], both["sluice-test"]["tolerations"]), (sku, sku))
        own = pods(render(values={"test.tolerations": sku}))
        self.assertEqual((own["sluice-node"]["tolerations"], own["sluice-test"]["tolerations"]), (usual, sku))

    def test_a_quota_admits_the_systems_priority_classes(self):
        def classes(*settings):
            quotas = [o for o in render(*settings) if o["kind"] == "ResourceQuota"]
            if not quotas:
                return []
            self.assertEqual(quotas[0]["spec"]["hard"], {"pods": "1G"})
            return quotas[0]["spec"]["scopeSelector"]["matchExpressions"][0]["values"]

        both = ["system-node-critical", "system-cluster-critical"]
        self.assertEqual(classes(), both)
        used = {p.get("priorityClassName") for n, p in pods(render(OWN)).items() if n != "sluice-test"}
        self.assertEqual(used, set(both))
        self.assertEqual(classes("webhook.priorityClassName="), ["system-node-critical"])
        self.assertEqual(classes("webhook.priorityClassName=", OWN), both)  # the scheduler's
        self.assertEqual(classes("webhook.priorityClassName=mine", "node.priorityClassName="), [])
        self.assertEqual(classes("priorityQuota=false"), [])

    def test_nvidias_runtime_class_reaches_users_pods(self):
        objects = render("driver.runtimeClassName=nvidia")
        self.assertEqual(config(objects, "device-plugin.yaml")["driverAccess"], "auto")
        webhook = config(objects, "webhook.yaml")
        self.assertEqual((webhook["driverAccess"], webhook["runtimeClass"]), ("nvidia-runtime", "nvidia"))
        self.assertEqual(config(render(), "webhook.yaml")["driverAccess"], "cdi")
