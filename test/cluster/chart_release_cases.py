"""The chart's selectors, names, versions and logs.

chart_test.py runs these cases.
"""

import json
import subprocess
import tempfile
import unittest

import yaml
from chart_platform_cases import OWN, WORKLOADS, pods, rendered
from chart_rig import CHART, HELM, config, one, render, run


class Selectors(unittest.TestCase):
    def selectors(self, objects):
        found = []
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            found += [w["namespaceSelector"] for w in one(objects, kind)["webhooks"]]
        self.assertGreater(len(found), 3)
        self.assertEqual(found, found[:1] * len(found))
        return found[0]

    def annotations(self, objects):
        kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        return [one(objects, kind)["metadata"].get("annotations") for kind in kinds]

    def test_further_expressions(self):
        excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
        self.assertEqual(self.selectors(render()), {"matchExpressions": [excluded]})
        absent = {"key": "control-plane", "operator": "DoesNotExist"}
        settings = [f"webhook.namespaceSelector.matchExpressions[0].{k}={v}" for k, v in absent.items()]
        self.assertEqual(self.selectors(render(*settings)), {"matchExpressions": [excluded, absent]})
        labels = render(values={"webhook.namespaceSelector": {"matchLabels": {"team": "ml"}}})
        self.assertEqual(self.selectors(labels), {"matchExpressions": [excluded], "matchLabels": {"team": "ml"}})
        self.assertEqual(self.annotations(render()), [None, None])

    def test_aks_writes_nothing_into_the_webhooks(self):
        objects = render("platform=aks", "webhook.annotations.mine=yes")
        self.assertEqual(self.annotations(objects), [{"admissions.enforcer/disabled": "true", "mine": "yes"}] * 2)
        keys = [(e["key"], e["operator"], e["values"]) for e in self.selectors(objects)["matchExpressions"]]
        self.assertIn(("control-plane", "NotIn", ["true"]), keys)
        self.assertIn(("kubernetes.azure.com/managedby", "NotIn", ["aks"]), keys)
        # Once, though the values name it too.
        again = {
            "matchExpressions": [{"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]}]
        }
        objects = render("platform=aks", values={"webhook.namespaceSelector": again})
        self.assertEqual(len(self.selectors(objects)["matchExpressions"]), 3)
        both = self.annotations(render("platform=aks", "webhook.certificate.mode=cert-manager"))
        self.assertEqual(sorted(both[0]), ["admissions.enforcer/disabled", "cert-manager.io/inject-ca-from"])

    def test_wrong_expressions_are_refused(self):
        for expression in (
            {"key": "a"},
            {"key": "a", "operator": "Equals"},
            {"key": "a", "operator": "In"},
            {"key": "a", "operator": "NotIn", "values": []},
            {"key": "a", "operator": "Exists", "values": ["x"]},
        ):
            value = json.dumps({"matchExpressions": [expression]})
            result = run("template", "s", CHART, "--set-json", "webhook.namespaceSelector=" + value)
            self.assertIn("namespaceSelector", result.stderr, expression)

    def test_empty_lists_and_maps(self):
        """Each list and map of the values may be emptied, and the API server takes the result."""
        self.assertEqual(self.selectors(rendered("webhook: {excludedNamespaces: []}")), {})

        def emptied(values, path=()):
            for key, value in values.items():
                if isinstance(value, list):
                    yield (*path, key), []
                elif isinstance(value, dict):
                    yield from emptied(value, (*path, key))

        schema = json.loads((CHART / "values.schema.json").read_text())
        cases = list(emptied(yaml.safe_load((CHART / "values.yaml").read_text())))
        self.assertGreater(len(cases), 8)
        for path, value in cases:
            with self.subTest(".".join(path)):
                node = schema
                for key in path:
                    node = node["properties"][key]
                setting = ".".join(path) + "=" + json.dumps(value)
                result = run("template", "s", CHART, "--set", OWN, "--set-json", setting)
                self.assertEqual(result.returncode, 0, result.stderr)
                for o in [d for d in yaml.safe_load_all(result.stdout) if d]:
                    self.check_selectors(o)

    def check_selectors(self, node):
        """The API server refuses In and NotIn without values, and null in place of an object."""
        if isinstance(node, dict):
            if node.get("operator") in ("In", "NotIn"):
                self.assertTrue(node.get("values"), node)
            for key in ("nodeSelector", "securityContext", "namespaceSelector", "annotations", "labels", "spec"):
                self.assertFalse(key in node and node[key] is None, (key, node))
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
            self.check_selectors(child)


class Names(unittest.TestCase):
    def test_kubectl_sluice_finds_the_objects_of_the_chart(self):
        """cli/cluster_agents.cc: the webhook's name never changes; its configuration tells the label of the pods."""
        for settings in ((), ("nameOverride=gpu-share",), ("fullnameOverride=x",)):
            objects = render(*settings)
            configuration = one(objects, "MutatingWebhookConfiguration")
            self.assertIn("mutate.sluice.dev", [w["name"] for w in configuration["webhooks"]])
            name = configuration["metadata"]["labels"]["app.kubernetes.io/name"]
            for o in objects:
                if o["kind"] in WORKLOADS:
                    self.assertEqual(o["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"], name)

    def test_the_schedulers_version(self):
        for version, tag in {
            "v1.34.4": "v1.34.4",
            "1.34": "v1.34.0",  # Argo CD
            "v1.34": "v1.34.0",
            "v1.35.1+k3s1": "v1.35.1",
            "v1.34.4-gke.5": "v1.34.4",
            "1.33.10-eks-1a2b3c": "v1.33.10",
        }.items():
            result = run("template", "s", CHART, "--kube-version", version, "--set", OWN)
            self.assertIn(f'image: "registry.k8s.io/kube-scheduler:{tag}"', result.stdout, version + result.stderr)
        for setting in ("scheduler.image.tag=v1.31.7", "scheduler.image.digest=sha256:" + "a" * 64):
            result = run("template", "s", CHART, "--kube-version", "1.34", "--set", OWN, "--set", setting)
            self.assertIn(setting.split("=")[1], result.stdout)

    def test_no_version_at_all(self):
        """A renderer without Capabilities: the same templates, called with another version."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cp", "-r", CHART, folder + "/sluice"], check=True)
            path = folder + "/sluice/templates/_platform.tpl"
            text = open(path).read()
            self.assertIn(".Capabilities.KubeVersion.Version", text)
            for version in ("", "v1", "unknown"):
                with open(path, "w") as f:
                    f.write(text.replace(".Capabilities.KubeVersion.Version", f'"{version}"'))
                command = [HELM, "template", "s", folder + "/sluice", "--set", OWN]
                result = subprocess.run(command, capture_output=True, text=True)
                self.assertIn("scheduler.image.tag: missing", result.stderr)
                tagged = subprocess.run(
                    [*command, "--set", "scheduler.image.tag=v1.34.0"], capture_output=True, text=True
                )
                self.assertIn("kube-scheduler:v1.34.0", tagged.stdout)

    def test_images_have_no_scheme(self):
        for setting in (
            "image.registry=oci://harbor.local",
            "image.registry=https://r.example",
            "scheduler.image.repository=docker://x/kube-scheduler",
            "scheduler.image.tag=a b",
            "test.image=oci://x/y",
        ):
            result = run("template", "s", CHART, "--set", setting)
            self.assertNotEqual(result.returncode, 0, setting)
        render("image.registry=harbor.local:5000/team/x", "test.image=r.example:5000/a/b:1")


class Logs(unittest.TestCase):
    def formats(self, *settings):
        objects = render(OWN, *settings)
        plugin, webhook = config(objects, "device-plugin.yaml"), config(objects, "webhook.yaml")
        extender = yaml.safe_load(one(objects, "ConfigMap", "sluice-scheduler")["data"]["extender.yaml"])
        scheduler = pods(objects)["sluice-scheduler"]["containers"][0]["args"]
        return [
            (plugin["logFormat"], plugin["logLevel"].lower()),
            (webhook["logFormat"], webhook["logLevel"]),
            tuple(config(objects, "agent.yaml")["log"].values()),
            tuple(extender["log"].values()),
        ], [a for a in scheduler if "logging" in a]

    def test_one_value_for_all_daemons(self):
        self.assertEqual(self.formats(), ([("json", "info")] * 4, ["--logging-format=json"]))
        self.assertEqual(
            self.formats("logging.format=text", "logging.level=debug"),
            ([("text", "debug")] * 4, ["--logging-format=text"]),
        )
        for setting in ("logging.format=xml", "logging.level=loud", "logging.colour=red"):
            self.assertIn("logging", run("template", "s", CHART, "--set", setting).stderr)

    def test_a_daemons_own_configuration_wins(self):
        objects = render(
            "agent.config.log.level=debug", "devicePlugin.config.logLevel=DEBUG", "webhook.config.logFormat=text"
        )
        self.assertEqual(config(objects, "agent.yaml")["log"], {"format": "json", "level": "debug"})
        self.assertEqual(config(objects, "device-plugin.yaml")["logLevel"], "DEBUG")
        self.assertEqual(config(objects, "webhook.yaml")["logFormat"], "text")
