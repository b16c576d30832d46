"""The chart's objects for Dynamic Resource Allocation.

chart_test.py runs these cases.
"""

import unittest

import yaml
from chart_rig import CHART, config, containers, one, pod_of, render, run


def names(objects):
    return [c["name"] for c in containers(pod_of(one(objects, "DaemonSet")))]


def on_version(setting, version, *apis):
    """What `dra.enabled=SETTING` renders for an API server of this version that serves these groups."""
    result = run(
        *("template", "sluice", CHART, "--set", f"dra.enabled={setting}", "--kube-version", version),
        *(f"--api-versions={api}" for api in apis),
    )
    assert result.returncode == 0, result.stderr
    return [d for d in yaml.safe_load_all(result.stdout) if d]


class DynamicResourceAllocation(unittest.TestCase):
    def test_a_release_without_it_has_no_trace_of_it(self):
        objects = render()
        self.assertNotIn("DeviceClass", [o["kind"] for o in objects])
        self.assertNotIn("dra-driver", names(objects))
        self.assertNotIn("resource.k8s.io", str(objects))

    def test_auto_follows_the_version(self):
        # `helm template` counts every group that helm knows as served.
        served = "resource.k8s.io/v1"
        self.assertIn("dra-driver", names(on_version("auto", "1.36.0", served)))
        self.assertIn("dra-driver", names(on_version("auto", "1.37.2+k3s1", served)))
        for version in ("1.35.4", "1.34.4"):
            self.assertIn("device-plugin", names(on_version("auto", version, served)), version)
        self.assertIn("device-plugin", names(on_version("false", "1.37.0", served)))
        self.assertIn("dra-driver", names(on_version("true", "1.34.4", served)))

    def test_a_node_runs_driver_or_device_plugin_never_both(self):
        for setting, there, absent in (
            ("true", "dra-driver", "device-plugin"),
            ("false", "device-plugin", "dra-driver"),
        ):
            found = names(render(f"dra.enabled={setting}"))
            self.assertIn(there, found)
            self.assertNotIn(absent, found)

    def test_the_class_selects_the_driver(self):
        objects = render("dra.enabled=true")
        spec = one(objects, "DeviceClass", "sluice.dev")["spec"]
        self.assertEqual(spec, {"selectors": [{"cel": {"expression": "device.driver == 'sluice.dev'"}}]})
        whole = render("dra.enabled=true", "dra.extendedResourceName=sluice.dev/gpu")
        self.assertEqual(one(whole, "DeviceClass")["spec"]["extendedResourceName"], "sluice.dev/gpu")

    def test_the_driver_reads_kubelets_folders_and_the_agents_reserve(self):
        objects = render("dra.enabled=true", "kubelet.rootDir=/data/kubelet", "agent.config.reserve=512Mi")
        pod = pod_of(one(objects, "DaemonSet"))
        driver = next(c for c in containers(pod) if c["name"] == "dra-driver")
        mounts = {m["mountPath"] for m in driver["volumeMounts"]}
        for flag, folder in (
            ("plugins-dir", "/data/kubelet/plugins"),
            ("registry-dir", "/data/kubelet/plugins_registry"),
        ):
            self.assertIn(f"--{flag}={folder}", driver["args"])
            self.assertIn(folder, mounts)
            self.assertIn(folder, [v.get("hostPath", {}).get("path") for v in pod["volumes"]])
        self.assertIn("/var/run/secrets/kubernetes.io/serviceaccount", mounts)
        self.assertEqual(config(objects, "device-plugin.yaml")["reserve"], "512Mi")

    def test_the_driver_writes_only_slices_of_its_own_node(self):
        objects = render("dra.enabled=true")
        rules = one(objects, "ClusterRole", "sluice-node")["rules"]
        verbs = {
            r: set(rule["verbs"])
            for rule in rules
            if rule["apiGroups"] == ["resource.k8s.io"]
            for r in rule["resources"]
        }
        self.assertEqual(
            verbs,
            {"resourceslices": {"list", "watch", "create", "update", "delete"}, "resourceclaims": {"get"}},
        )
        policy = one(objects, "ValidatingAdmissionPolicy", "sluice-driver-publishes")["spec"]
        self.assertEqual(policy["matchConstraints"]["resourceRules"][0]["operations"], ["CREATE", "UPDATE", "DELETE"])
        self.assertIn("spec.?nodeName.orValue('') == variables.node", policy["validations"][0]["expression"])

    def test_the_webhook_judges_new_claims_only(self):
        hooks = one(render("dra.enabled=true"), "ValidatingWebhookConfiguration")["webhooks"]
        rule = next(h for h in hooks if h["name"] == "claim.sluice.dev")["rules"][0]
        self.assertEqual(rule["operations"], ["CREATE"])
        self.assertEqual(rule["resources"], ["resourceclaims", "resourceclaimtemplates"])

    def test_annotations_become_claims_where_the_driver_serves_the_nodes(self):
        for settings, by_claims in (
            (("dra.enabled=true",), True),
            (("dra.enabled=true", "dra.annotations=false"), False),
            (("dra.enabled=false",), False),
            (("dra.enabled=false", "dra.annotations=true"), True),
        ):
            with self.subTest(settings):
                objects = render(*settings)
                self.assertEqual(config(objects, "webhook.yaml").get("shareBy"), "claims" if by_claims else None)
                hooks = one(objects, "MutatingWebhookConfiguration")["webhooks"]
                effects = {h["name"]: h["sideEffects"] for h in hooks}
                self.assertEqual(effects.pop("mutate.sluice.dev"), "NoneOnDryRun" if by_claims else "None")
                self.assertEqual(set(effects.values()), {"None"})
                rules = one(objects, "ClusterRole", "sluice-webhook")["rules"]
                rights = {r: rule["verbs"] for rule in rules for r in rule["resources"] if r.startswith("resource")}
                expected = {
                    "resourceslices": ["list", "watch"],
                    "resourceclaimtemplates": ["get", "list", "watch", "create"],
                }
                self.assertEqual(rights, expected if by_claims else {})

    def test_the_webhook_does_not_wait_for_itself(self):
        hooks = one(render("dra.enabled=true"), "ValidatingWebhookConfiguration")["webhooks"]
        conditions = next(h for h in hooks if h["name"] == "claim.sluice.dev")["matchConditions"]
        account = one(render("dra.enabled=true"), "Deployment", "sluice-webhook")["spec"]["template"]["spec"]
        self.assertIn(f":{account['serviceAccountName']}'", conditions[0]["expression"])

    def test_wrong_values_are_refused(self):
        for setting in (
            "dra.annotations=units",
            "dra.enabled=maybe",
            "dra.sliceAtExit=never",
            "dra.extendedResourceName=gpu",
            "dra.nodes=all",
        ):
            self.assertNotEqual(run("template", "x", CHART, "--set", setting).returncode, 0, setting)
