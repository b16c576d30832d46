#!/usr/bin/python3
"""The chart's output for placement: by default none, a second scheduler, or the extender for the cluster's own one."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))
import yaml
from chart_rig import CHART, one, pod_of, render, run

OWN, CLUSTER = "scheduler.mode=own", "scheduler.mode=cluster"


def config_of(objects, key):
    return yaml.safe_load(one(objects, "ConfigMap", "sluice-scheduler")["data"][key])


def daemon_config(objects, key):
    return yaml.safe_load(one(objects, "ConfigMap", "sluice")["data"][key])


class Scheduler(unittest.TestCase):
    def test_off_renders_nothing_for_placement(self):
        objects = render()
        self.assertFalse(
            [o for o in objects if "scheduler" in o["metadata"]["name"] or "extender" in o["metadata"]["name"]]
        )
        self.assertNotIn("schedulerName", daemon_config(objects, "webhook.yaml"))
        self.assertNotIn("extender", daemon_config(objects, "device-plugin.yaml"))

    def test_own_scheduler_and_extender_are_one_pod(self):
        objects = render(OWN)
        deployment = one(objects, "Deployment", "sluice-scheduler")
        pod = pod_of(deployment)
        scheduler, extender = pod["containers"]
        self.assertEqual(deployment["spec"]["replicas"], 1)
        self.assertEqual(pod["schedulerName"], "default-scheduler")
        config = config_of(objects, "scheduler.yaml")
        self.assertEqual(config["profiles"], [{"schedulerName": "sluice-scheduler"}])
        self.assertFalse(config["leaderElection"]["leaderElect"])
        call = config["extenders"][0]
        self.assertEqual(call["urlPrefix"], "http://127.0.0.1:8889")
        self.assertTrue(call["nodeCacheCapable"])
        self.assertFalse(call["ignorable"])
        self.assertEqual(call["managedResources"], [{"name": "sluice.dev/gpu-percent", "ignoredByScheduler": False}])
        own = config_of(objects, "extender.yaml")
        self.assertEqual(own["listen"], "127.0.0.1:8889")  # only the pod itself may request a Binding
        self.assertEqual(own["metricsListen"], ":9404")
        self.assertEqual(extender["ports"], [{"name": "metrics", "containerPort": 9404}])
        for container in (scheduler, extender):
            self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
            self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        # The webhook names the scheduler in pods; agent and plugin handle the reservations.
        self.assertEqual(daemon_config(objects, "webhook.yaml")["schedulerName"], "sluice-scheduler")
        plugin = daemon_config(objects, "device-plugin.yaml")
        self.assertIs(plugin["extender"], True)
        self.assertEqual(plugin["reservationFile"], "/run/sluice/reservations.json")

    def test_the_image_follows_the_clusters_version(self):
        for version, tag in {"1.34.4": "v1.34.4", "v1.31.2+k3s1": "v1.31.2", "v1.30.5-gke.1014001": "v1.30.5"}.items():
            result = run("template", "sluice", CHART, "--set", OWN, "--kube-version", version)
            self.assertIn(f'image: "registry.k8s.io/kube-scheduler:{tag}"', result.stdout, version)
        pod = pod_of(
            one(
                render(OWN, "scheduler.image.repository=mirror/kube-scheduler", "scheduler.image.tag=v1.33.1"),
                "Deployment",
                "sluice-scheduler",
            )
        )
        self.assertEqual(pod["containers"][0]["image"], "mirror/kube-scheduler:v1.33.1")

    def test_rights(self):
        objects = render(OWN)
        role = one(objects, "ClusterRole", "sluice-extender")
        self.assertEqual(
            role["rules"],
            [
                {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
            ],
        )
        bound = {
            o["roleRef"]["name"]
            for o in objects
            if o["kind"] == "ClusterRoleBinding" and o["subjects"][0]["name"] == "sluice-scheduler"
        }
        self.assertEqual(bound, {"sluice-extender", "system:kube-scheduler", "system:volume-scheduler"})
        self.assertFalse([o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == "sluice-scheduler"])
        binding = one(objects, "RoleBinding", "sluice-scheduler-authentication")
        self.assertEqual(
            (binding["metadata"]["namespace"], binding["roleRef"]["name"]),
            ("kube-system", "extension-apiserver-authentication-reader"),
        )
        bound = {
            o["roleRef"]["name"]
            for o in render(CLUSTER)
            if o["kind"] == "ClusterRoleBinding" and o["subjects"][0]["name"] == "sluice-scheduler"
        }
        self.assertEqual(bound, {"sluice-extender"})

    def test_volcano_asks_the_extender(self):
        on = "scheduler.volcano.enabled=true"
        plain = render(OWN)
        self.assertNotIn("volcanoListen", config_of(plain, "extender.yaml"))
        self.assertFalse([o for o in plain if "volcano" in o["metadata"]["name"] or "places" in o["metadata"]["name"]])
        objects = render(OWN, on, "scheduler.volcano.port=8800")
        own = config_of(objects, "extender.yaml")
        # The calls that bind pods stay where only the pod itself reaches them.
        self.assertEqual((own["listen"], own["volcanoListen"]), ("127.0.0.1:8889", ":8800"))
        extender = pod_of(one(objects, "Deployment", "sluice-scheduler"))["containers"][1]
        self.assertIn({"name": "volcano", "containerPort": 8800}, extender["ports"])
        service = one(objects, "Service", "sluice-volcano")
        self.assertEqual(service["spec"]["ports"], [{"name": "volcano", "port": 8800, "targetPort": "volcano"}])
        plugin = config_of(objects, "volcano.yaml")[0]
        self.assertEqual(plugin["name"], "extender")
        arguments = {k.removeprefix("extender."): v for k, v in plugin["arguments"].items()}
        self.assertEqual(arguments["urlPrefix"], "http://sluice-volcano.sluice-system.svc:8800")
        self.assertEqual(
            {k: v for k, v in arguments.items() if k.endswith("Verb")},
            {
                "predicateVerb": "predicate",
                "allocateFuncVerb": "allocate",
                "deallocateFuncVerb": "deallocate",
                "onSessionCloseVerb": "session-close",
            },
        )
        self.assertEqual(arguments["managedResources"], ["sluice.dev/gpu-percent"])
        self.assertIs(arguments["ignorable"], False)
        role = one(objects, "ClusterRole", "sluice-extender")
        self.assertIn({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}, role["rules"])
        policy = one(objects, "ValidatingAdmissionPolicy", "sluice-extender-places")
        self.assertIn(
            "serviceaccount:sluice-system:sluice-scheduler", policy["spec"]["matchConditions"][0]["expression"]
        )
        rules = one(objects, "NetworkPolicy", "sluice-volcano")["spec"]["ingress"]
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "volcano-system"}}}
        self.assertEqual(rules[0], {"from": [peer], "ports": [{"protocol": "TCP", "port": "volcano"}]})
        self.assertEqual(rules[1], {"ports": [{"protocol": "TCP", "port": "metrics"}]})
        open_to_all = run(
            "template", "sluice", CHART, "--set", f"{OWN},{on}", "--set-json", "scheduler.volcano.from=[]"
        )
        self.assertNotIn("kind: NetworkPolicy", open_to_all.stdout)

    def test_volcano_needs_the_one_extender(self):
        on = "scheduler.volcano.enabled=true"
        for settings, words in {
            (on,): "scheduler.volcano.enabled: needs scheduler.mode own, which is none",
            (on, CLUSTER): "scheduler.volcano.enabled: needs scheduler.mode own, which is cluster",
            (on, OWN, "scheduler.replicas=2"): "scheduler.replicas: 2 with scheduler.volcano.enabled; accepted: 1",
            (on, OWN, "scheduler.volcano.port=8889"): "scheduler.port: 8889 is also scheduler.volcano.port",
        }.items():
            result = run("template", "sluice", CHART, "--set", ",".join(settings))
            self.assertNotEqual(result.returncode, 0, settings)
            self.assertIn(words, result.stderr)

    def test_claims_are_scored_where_the_driver_serves_the_nodes(self):
        for settings, wanted in (
            ((OWN,), False),
            ((OWN, "dra.enabled=true"), True),
            ((OWN, "dra.enabled=true", "scheduler.claims=false"), False),
            ((CLUSTER, "scheduler.claims=true"), True),
        ):
            objects = render(*settings)
            key = "scheduler.yaml" if OWN in settings else "fragment.yaml"
            calls = config_of(objects, key)["extenders"]
            self.assertEqual(len(calls), 1 + wanted, settings)
            self.assertEqual(config_of(objects, "extender.yaml").get("claims", False), wanted, settings)
            groups = [g for rule in one(objects, "ClusterRole", "sluice-extender")["rules"] for g in rule["apiGroups"]]
            self.assertEqual("resource.k8s.io" in groups, wanted, settings)
            if wanted:
                # It scores only: the scheduler's own filter knows the claims. Kubernetes accepts one binder.
                verbs = {k: v for k, v in calls[1].items() if k.endswith("Verb")}
                self.assertEqual(verbs, {"prioritizeVerb": "prioritize-any"})
                self.assertTrue(calls[1]["ignorable"])
                self.assertNotIn("managedResources", calls[1])  # the scheduler asks about pods with claims, too
        others = render(OWN, "scheduler.otherPods=true")
        self.assertEqual(config_of(others, "scheduler.yaml")["extenders"][1]["prioritizeVerb"], "prioritize-any")
        self.assertIs(config_of(others, "extender.yaml")["otherPods"], True)
        self.assertNotIn("claims", config_of(others, "extender.yaml"))
        rule = one(render(OWN, "dra.enabled=true"), "ClusterRole", "sluice-extender")["rules"][-1]
        self.assertEqual(rule["resources"], ["deviceclasses", "resourceclaims", "resourceslices"])
        self.assertEqual(rule["verbs"], ["get", "list", "watch"])
        self.assertNotEqual(run("template", "x", CHART, "--set", "scheduler.claims=maybe").returncode, 0)

    def test_several_replicas_elect_a_leader(self):
        objects = render(OWN, "scheduler.replicas=2")
        self.assertTrue(config_of(objects, "scheduler.yaml")["leaderElection"]["leaderElect"])
        self.assertEqual(config_of(objects, "scheduler.yaml")["leaderElection"]["resourceName"], "sluice-scheduler")
        rules = one(objects, "Role", "sluice-scheduler")["rules"]
        self.assertIn(
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": ["sluice-scheduler"],
                "verbs": ["get", "update"],
            },
            rules,
        )

    def test_the_extender_for_the_clusters_own_scheduler(self):
        objects = render(CLUSTER, "scheduler.ignorable=true", "scheduler.policy=spread")
        pod = pod_of(one(objects, "DaemonSet", "sluice-scheduler"))
        self.assertTrue(pod["hostNetwork"])
        self.assertEqual(
            pod["nodeSelector"], {"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""}
        )
        self.assertEqual([c["name"] for c in pod["containers"]], ["extender"])
        call = config_of(objects, "fragment.yaml")["extenders"][0]
        self.assertTrue(call["ignorable"])
        self.assertEqual(call["urlPrefix"], "http://127.0.0.1:8889")
        self.assertEqual(config_of(objects, "extender.yaml")["policy"], "spread")
        self.assertNotIn("schedulerName", daemon_config(objects, "webhook.yaml"))
        self.assertIs(daemon_config(objects, "device-plugin.yaml")["extender"], True)

    def test_removal_of_refused_pods_is_off_and_gets_only_its_rights(self):
        self.assertNotIn("removeRefused", daemon_config(render(), "webhook.yaml"))
        objects = render("webhook.removeRefused.enabled=true")
        self.assertEqual(
            daemon_config(objects, "webhook.yaml")["removeRefused"],
            {"namespace": "sluice-system", "lease": "sluice-refused", "afterSeconds": 30},
        )
        self.assertEqual(
            one(objects, "ClusterRole", "sluice-refused")["rules"],
            [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]}],
        )
        self.assertEqual(
            one(objects, "Role", "sluice-refused")["rules"],
            [
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "resourceNames": ["sluice-refused"],
                    "verbs": ["get", "update"],
                }
            ],
        )
        one(objects, "Lease", "sluice-refused")

    def test_wrong_values_are_refused(self):
        for wrong in (
            "scheduler.mode=off",
            "scheduler.policy=tight",
            "scheduler.name=Sluice",
            "scheduler.port=0",
            "scheduler.typo=1",
        ):
            self.assertNotEqual(run("template", "sluice", CHART, "--set", wrong).returncode, 0, wrong)


if __name__ == "__main__":
    unittest.main()
