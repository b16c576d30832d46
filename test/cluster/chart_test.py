#!/usr/bin/python3
"""The chart without a cluster: rendered objects of each setting, on each platform (chart_platform_cases.py,
chart_release_cases.py), and their
privileges (chart_privilege_cases.py)."""

import json
import subprocess
import unittest

import yaml
from chart_dra_cases import DynamicResourceAllocation  # noqa: F401  (unittest finds it here)
from chart_platform_cases import (  # noqa: F401  (unittest finds them here)
    Contradictions,
    Identities,
    KubeletFolders,
    Networks,
    Nodes,
)
from chart_privilege_cases import Privileges  # noqa: F401
from chart_release_cases import Logs, Names, Selectors  # noqa: F401
from chart_rig import CHART, ROOT, config, containers, node_pod, one, pod_of, render, run


class Lint(unittest.TestCase):
    def test_lint_strict(self):
        result = run("lint", "--strict", CHART)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_one_version(self):
        version = (ROOT / "VERSION").read_text().strip()
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))

    def test_every_default_is_in_the_schema(self):
        def walk(values, schema, path):
            for key, value in values.items():
                self.assertIn(key, schema["properties"], path + key)
                if isinstance(value, dict) and schema["properties"][key].get("additionalProperties") is False:
                    walk(value, schema["properties"][key], path + key + ".")

        walk(
            yaml.safe_load((CHART / "values.yaml").read_text()),
            json.loads((CHART / "values.schema.json").read_text()),
            "",
        )

    def test_wrong_values_are_refused(self):
        for setting, word in {
            "image.tagg=1": "tagg",
            "driver.access=cdi": "nvidia-cdi",
            "webhook.replicas=0": "replicas",
            "node.hostDir=var/lib": "hostDir",
            "webhook.certificate.mode=secret": "secretName",
            "webhook.assumedGpuMemory=lots": "assumedGpuMemory",
            "agent.notHooked=kill": "notHooked",
            "image.digest=abc": "digest",
            # Values that the API server, the daemons or YAML would reject later.
            "driver.access=own": "driver/root",
            "driver.runtimeClassName=a: b": "runtimeClassName",
            "fullnameOverride=Foo_Bar": "fullnameOverride",
            "image.pullSecrets[0]=a b": "pullSecrets",
            "image.registry=registry.example/": "registry",
            "image.repository=Sluice": "repository",
            "node.hostDir=/": "hostDir",
            "node.hostDir=/var/lib/sluice/": "hostDir",
            r"node.podLabels.app\.kubernetes\.io/name=x": "podLabels",
            "webhook.assumedGpuMemory=0": "assumedGpuMemory",
            "webhook.certificate.caBundle=no base64!": "caBundle",
        }.items():
            with self.subTest(setting):
                result = run("template", "sluice", CHART, "--set" if "replicas" in setting else "--set-string", setting)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(word, result.stderr)


class Settings(unittest.TestCase):
    def test_image(self):
        digest = "sha256:" + "a" * 64
        for settings, image in [
            (("image.tag=x",), "sluice:x"),
            (("image.registry=r.example:5000", "image.tag=x"), "r.example:5000/sluice:x"),
            (("image.registry=r.example", "image.repository=a/b", "image.digest=" + digest), "r.example/a/b@" + digest),
        ]:
            objects = render(*settings, "image.pullSecrets[0]=key")
            for pod in [
                pod_of(one(objects, "DaemonSet")),
                pod_of(one(objects, "Deployment")),
                one(objects, "Pod")["spec"],
            ]:
                self.assertEqual({c["image"] for c in containers(pod)}, {image})
                self.assertEqual(pod["imagePullSecrets"], [{"name": "key"}])

    def test_the_schedulers_image(self):
        def images(*settings):
            pods = [
                pod_of(o)
                for o in render("scheduler.mode=own", *settings)
                if o["kind"] == "Deployment" and o["metadata"]["name"].endswith("-scheduler")
            ]
            self.assertEqual(pods[0].get("imagePullSecrets"), [{"name": "key"}] if settings else None)
            return [c["image"] for c in containers(pods[0]) if c["name"] == "scheduler"]

        digest = "sha256:" + "b" * 64
        self.assertRegex(images()[0], r"^registry[.]k8s[.]io/kube-scheduler:v1[.]\d+[.]\d+$")
        self.assertEqual(
            images(
                "scheduler.image.repository=r.example/ks",
                "scheduler.image.digest=" + digest,
                "image.pullSecrets[0]=key",
            ),
            ["r.example/ks@" + digest],
        )

    def test_a_key_that_is_left_empty_is_missing(self):
        """`hostDir:` without a value takes the default away, and would be a folder named <nil>."""

        def needed(schema, path=""):
            for key in schema.get("required", []):
                yield path + key
                yield from needed(schema["properties"][key], path + key + ".")

        keys = list(needed(json.loads((CHART / "values.schema.json").read_text())))
        self.assertGreater(len(keys), 40)
        for key in keys[::4] + ["node.hostDir", "agent.port", "webhook.certificate"]:
            with self.subTest(key):
                result = run("template", "sluice", CHART, "--set", key + "=null")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"missing property '{key.rpartition('.')[2]}'", result.stderr)
        everything = ("scheduler.mode=own", "monitoring.serviceMonitor=true")
        self.assertNotIn("nil", json.dumps(render(*everything)))

    def test_names_that_look_like_something_else(self):
        values = ["--set-string", "driver.runtimeClassName=true", "--set-string", "image.pullSecrets[0]=123"]
        text = run("template", "sluice", CHART, *values).stdout
        pod = pod_of(one([d for d in yaml.safe_load_all(text) if d], "DaemonSet"))
        self.assertEqual((pod["runtimeClassName"], pod["imagePullSecrets"]), ("true", [{"name": "123"}]))

    def test_affinity(self):
        self.assertNotIn("affinity", node_pod())
        for mode, key in {
            "gpu-operator": "nvidia.com/gpu.present",
            "nfd": "feature.node.kubernetes.io/pci-10de.present",
        }.items():
            terms = node_pod("node.affinity=" + mode)["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            self.assertEqual(terms["nodeSelectorTerms"][0]["matchExpressions"][0]["key"], key)

    def test_directories_are_the_same_inside_and_outside(self):
        # The plugin tells kubelet host paths that it sees itself.
        objects = render(
            "node.hostDir=/data/sluice",
            "kubelet.rootDir=/data/kubelet",
            "kubelet.devicePluginDir=/data/kubelet/device-plugins",
            "node.cdiDir=/data/cdi",
            "node.runDir=/data/run",
            "driver.access=own",
            "driver.root=/data/driver",
            "driver.deviceRoot=/data/dev",
        )
        pod = pod_of(one(objects, "DaemonSet"))
        paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
        for c in containers(pod):
            for m in c["volumeMounts"]:
                if m["name"] in paths:
                    self.assertEqual(m["mountPath"], paths[m["name"]], c["name"])
        self.assertTrue(
            all(p.startswith("/data/") or p in ("/etc/cdi", "/sys/fs/cgroup") for p in paths.values()), paths
        )
        plugin = config(objects, "device-plugin.yaml")
        self.assertEqual(
            (plugin["allocDir"], plugin["driverRoot"], plugin["deviceRoot"]),
            ("/data/sluice/alloc", "/data/driver", "/data/dev"),
        )
        self.assertEqual(config(objects, "agent.yaml")["alloc_dir"], plugin["allocDir"])
        self.assertIn("/data/kubelet/device-plugins", pod["containers"][0]["args"])

    def test_driver_access(self):
        # With a RuntimeClass users' pods need it too, unless CDI alone is used.
        names = {"auto": "nvidia-runtime", "nvidia-cdi": "cdi", "nvidia-runtime": "nvidia-runtime", "own": "direct"}
        for access, webhook in names.items():
            objects = render("driver.access=" + access, "driver.runtimeClassName=nvidia", "driver.root=/opt/driver")
            self.assertEqual(config(objects, "device-plugin.yaml")["driverAccess"], access)
            self.assertEqual(config(objects, "webhook.yaml")["driverAccess"], webhook)
            pod = pod_of(one(objects, "DaemonSet"))
            self.assertEqual(pod["runtimeClassName"], "nvidia")
            self.assertEqual(
                any(e["name"] == "NVIDIA_VISIBLE_DEVICES" for e in pod["containers"][0]["env"]), access != "own"
            )

    def test_further_configuration_wins(self):
        objects = render(
            "agent.config.host_memory.percent=30",
            "devicePlugin.config.coexist=allow",
            "webhook.config.watchNodes=false",
        )
        self.assertEqual(config(objects, "agent.yaml")["host_memory"], {"percent": 30})
        self.assertEqual(config(objects, "device-plugin.yaml")["coexist"], "allow")
        self.assertIs(config(objects, "webhook.yaml")["watchNodes"], False)

    def test_changed_configuration_restarts(self):
        def hashes(*settings):
            return [
                w["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
                for w in render(*settings)
                if w["kind"] in ("DaemonSet", "Deployment")
            ]

        self.assertEqual(hashes(), hashes())
        self.assertNotEqual(hashes(), hashes("agent.notHooked=evict"))

    def test_certificate_modes(self):
        def parts(*settings):
            objects = render(*settings)
            bundles = {
                w["clientConfig"].get("caBundle")
                for o in objects
                if o["kind"].endswith("WebhookConfiguration")
                for w in o["webhooks"]
            }
            volumes = pod_of(one(objects, "Deployment"))["volumes"]
            return objects, bundles, [v["secret"]["secretName"] for v in volumes if "secret" in v]

        objects, bundles, mounted = parts("webhook.certificate.mode=self")
        self.assertEqual((bundles, mounted), ({None}, []))
        self.assertNotIn("data", one(objects, "Secret"))
        objects, bundles, mounted = parts("webhook.certificate.mode=helm")
        self.assertEqual(bundles, {one(objects, "Secret")["data"]["ca.crt"]})
        self.assertEqual(mounted, ["sluice-webhook-tls"])
        objects, bundles, mounted = parts(
            "webhook.certificate.mode=secret",
            "webhook.certificate.secretName=mine",
            "webhook.certificate.caBundle=Q0E=",
        )
        self.assertEqual((bundles, mounted), ({"Q0E="}, ["mine"]))
        self.assertFalse([o for o in objects if o["kind"] == "Secret"])
        objects, bundles, mounted = parts("webhook.certificate.mode=cert-manager")
        self.assertEqual((bundles, mounted), ({None}, ["sluice-webhook-tls"]))
        self.assertEqual(one(objects, "Certificate")["spec"]["dnsNames"], ["sluice-webhook.sluice-system.svc"])
        self.assertIn(
            "cert-manager.io/inject-ca-from", one(objects, "MutatingWebhookConfiguration")["metadata"]["annotations"]
        )

    def test_an_outage_stops_no_other_pod(self):
        objects = render()
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for w in one(objects, kind)["webhooks"]:
                # Changes of sluice's own annotations alone wait for the webhook.
                self.assertEqual(w["failurePolicy"], "Fail" if w["name"] == "pods.sluice.dev" else "Ignore")
                self.assertTrue(w["matchConditions"])
                self.assertLessEqual(w["timeoutSeconds"], 5)
                self.assertEqual(w["namespaceSelector"]["matchExpressions"][0]["values"], ["kube-system"])
        self.assertEqual(
            one(objects, "ValidatingAdmissionPolicyBinding", "sluice-require-marker")["spec"]["validationActions"],
            ["Deny"],
        )

    def test_monitoring_is_off_and_can_be_switched_on(self):
        kinds = {o["kind"] for o in render()}
        self.assertFalse(kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"})
        kinds = {o["kind"] for o in render("monitoring.serviceMonitor=true", "monitoring.labels.release=p")}
        self.assertTrue({"ServiceMonitor", "PodMonitor"} <= kinds)
        self.assertTrue(one(render("monitoring.prometheusRule=true"), "PrometheusRule")["spec"]["groups"])

    def test_two_releases_do_not_share_names(self):
        def names(release):
            result = run("template", release, CHART, "--namespace", "n")
            return {(o["kind"], o["metadata"]["name"]) for o in yaml.safe_load_all(result.stdout) if o}

        self.assertFalse(names("a") & names("b"))


class Manifests(unittest.TestCase):
    def test_manifests_equal_the_rendered_chart(self):
        result = subprocess.run(
            [ROOT / "scripts" / "manifests", "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
