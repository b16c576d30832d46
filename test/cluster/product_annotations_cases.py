"""Pods with annotations where the DRA driver serves the nodes; product_dra_test.py runs these cases."""

import json
import os
import sys

import product as p
import yaml
from product_claims import SPACE

sys.path.insert(0, str(p.ROOT / "test" / "lib"))
import exit_line

GIB = 1 << 30
MIB = 1 << 20
HALF = {"sluice.dev/gpu-fraction": "0.5"}


def templates():
    return sorted(t["metadata"]["name"] for t in p.get("-n", SPACE, "resourceclaimtemplates")["items"])


class Annotations:
    """Cases of product_dra_test.Claims, which has the pods' helpers."""

    @classmethod
    def part(cls, percent):
        """The bytes that a fraction is worth: whole MiB of the bytes that claims may have of the card."""
        return cls.card_bytes() // MIB * percent // 100 * MIB

    def budgets(self, pod):
        """Guaranteed bytes by container, of each card."""
        out = {}
        for a in self.held():
            if a["pod"] == pod:
                out[a["container"]] = [int(g["guaranteed_bytes"]) for g in a["gpus"]]
        return out

    def test_an_annotated_fraction_is_a_claim(self):
        p.apply(p.idle_pod("half", {**HALF, "sluice.dev/memory-limit": "90Gi"}), SPACE)
        self.runs("half")
        pod = p.get("-n", SPACE, "pod", "half")
        container = pod["spec"]["containers"][0]
        self.assertNotIn("limits", container["resources"])
        self.assertEqual(container["resources"]["claims"], [{"name": "sluice-main"}])
        self.assertEqual(pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"], templates()[0])
        self.assertEqual(self.budgets("half"), {"main": [self.part(50)]})
        self.assertEqual(int(self.held()[0]["gpus"][0]["limit_bytes"]), 90 * GIB)
        self.assertEqual(self.nodes_inside("half"), 1)
        env = dict(x.split("=", 1) for x in self.inside("half", "env").splitlines() if "=" in x)
        self.assertEqual(env["LD_PRELOAD"], "/opt/sluice/lib/libsluice.so")
        self.assertEqual(env["SLUICE_COMPUTE_REQUEST"], "0.5")
        self.assertIn("agent.sock", self.inside("half", "ls", "/opt/sluice/run"))
        for view in ("top", "status"):
            output = p.plugin(view, *(("--once",) if view == "top" else ())).stdout
            self.assertEqual(len([x for x in output.splitlines() if f"{SPACE}/half" in x]), 1, output)
        # Another half fits beside it on two cards, and no third.
        names = [f"half-{i}" for i in range(2 * len(self.devices()) - 1)]
        for name in names:
            p.apply(p.idle_pod(name, HALF), SPACE)
        self.runs(*names)
        self.assertEqual(len(templates()), 2)  # with the limit, and without

    def test_a_training_is_held_to_its_annotation(self):
        annotations = {"sluice.dev/gpu-memory": "4Gi", "sluice.dev/log-level": "INFO"}
        p.apply(p.training_pod("train", annotations, env=[{"name": "LD_PRELOAD", "value": "libm.so.6"}]), SPACE)
        p.wait(120, "the training to end", lambda: p.phase("train", SPACE) in ("Succeeded", "Failed"))
        log = p.kubectl("-n", SPACE, "logs", "train")
        self.assertEqual(p.phase("train", SPACE), "Succeeded", log)
        line = exit_line.parse(log)[0]  # 5.8 GiB are live
        self.assertEqual(line["budget_bytes"], 4 * GIB)
        self.assertGreater(line["fetched_bytes"], GIB)

    def test_a_library_of_the_pods_own_stays(self):
        pod = p.idle_pod("own", {"sluice.dev/gpu-memory": "1Gi"})
        pod["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "libm.so.6"}]
        p.apply(pod, SPACE)
        self.runs("own")
        env = dict(x.split("=", 1) for x in self.inside("own", "env").splitlines() if "=" in x)
        self.assertEqual(env["LD_PRELOAD"], "/opt/sluice/lib/libsluice.so:libm.so.6")

    def test_annotated_shares_of_two_cards_and_of_two_containers(self):
        p.apply(p.idle_pod("pair", {"sluice.dev/gpu-memory": "20Gi", "sluice.dev/gpu-count": "2"}), SPACE)
        pod = p.idle_pod("two", {"gpu-fraction.sluice.dev/main": "0.25", "gpu-memory.sluice.dev/second": "10Gi"})
        first = pod["spec"]["containers"][0]
        pod["spec"]["containers"].append({**first, "name": "second"})
        pod["spec"]["containers"].append({**first, "name": "third"})
        p.apply(pod, SPACE)
        self.runs("pair", "two")
        self.assertEqual(self.budgets("pair"), {"main": [20 * GIB, 20 * GIB]})
        self.assertEqual(self.nodes_inside("pair"), 2)
        self.assertEqual(self.budgets("two"), {"main": [self.part(25)], "second": [10 * GIB]})
        inside = lambda c: p.kubectl("-n", SPACE, "exec", "two", "-c", c, "--", "env")
        self.assertIn("SLUICE_GPU_MEMORY=10Gi", inside("second"))
        self.assertNotIn("LD_PRELOAD", inside("third"))

    def test_an_init_container_has_the_claim_of_the_container_after_it(self):
        pod = p.idle_pod("init", {"gpu-fraction.sluice.dev/main": "0.9", "gpu-fraction.sluice.dev/warm": "0.9"})
        first = pod["spec"]["containers"][0]
        command = ["bash", "-c", "ls /opt/sluice/run/agent.sock"]
        pod["spec"]["initContainers"] = [{**first, "name": "warm", "command": command}]
        p.apply(pod, SPACE)
        self.runs("init")
        self.assertEqual(self.budgets("init"), {"main": [self.part(90)]})

    def test_a_request_for_units_becomes_a_claim(self):
        pod = p.idle_pod("units", {})
        pod["spec"]["containers"][0]["resources"] = {"limits": {"sluice.dev/gpu-percent": "30"}}
        p.apply(pod, SPACE)
        self.runs("units")
        self.assertEqual(self.budgets("units"), {"main": [self.part(30)]})

    def test_a_deployment_of_annotated_pods_rolls(self):
        pod = p.idle_pod("unused", HALF)
        template = {"metadata": {"labels": {"app": "web"}, "annotations": HALF}, "spec": pod["spec"]}
        template["spec"]["restartPolicy"] = "Always"
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        }
        rolled = lambda: p.kubectl("-n", SPACE, "rollout", "status", "deployment/web", "--timeout=120s")
        sizes = lambda: sorted(int(a["gpus"][0]["guaranteed_bytes"]) for a in self.held())
        try:
            p.apply(deployment, SPACE)
            rolled()
            self.assertEqual(sizes(), [self.part(50)] * 2)
            template["metadata"]["annotations"] = {"sluice.dev/gpu-fraction": "0.3"}
            p.apply(deployment, SPACE)
            rolled()
            p.wait(90, "the old pods' claims to be given back", lambda: sizes() == [self.part(30)] * 2)
            self.assertEqual(len(templates()), 2)
            # A template that is gone is made again for the next pod.
            p.kubectl("-n", SPACE, "delete", "resourceclaimtemplates", "-l", "app.kubernetes.io/managed-by=sluice")
            p.kubectl("-n", SPACE, "rollout", "restart", "deployment/web")
            rolled()
            self.assertEqual(len(templates()), 1)
        finally:
            p.kubectl("-n", SPACE, "delete", "deployment", "web", "--wait=true", check=False)

    def test_settings_that_a_claim_cannot_carry_are_denied(self):
        def denied(pod):
            result = p.apply(pod, SPACE, check=False)
            self.assertNotEqual(result.returncode, 0)
            return result.stderr

        opportunistic = p.idle_pod("low", {**HALF, "sluice.dev/priority": "opportunistic"})
        self.assertIn("a claim always books", denied(opportunistic))
        self.assertIn("exceeds the memory of every GPU", denied(p.idle_pod("big", {"sluice.dev/gpu-memory": "999Gi"})))
        p.apply(p.idle_pod("fixed", HALF), SPACE)
        self.runs("fixed")
        for change in ("sluice.dev/gpu-fraction=0.6", "sluice.dev/log-level=DEBUG"):
            result = p.run("kubectl", "-n", SPACE, "annotate", "--overwrite", "pod", "fixed", change, check=False)
            self.assertIn("this pod's share is a ResourceClaim", result.stderr)
        # The same manifest again changes nothing.
        self.assertIn("unchanged", p.apply(p.idle_pod("fixed", HALF), SPACE).stdout)

    def test_templates_are_made_for_real_pods_only_and_forged_ones_are_refused(self):
        pod = yaml.safe_dump(p.idle_pod("dry", {"sluice.dev/gpu-memory": "3Gi"}))
        out = p.run("kubectl", "-n", SPACE, "create", "--dry-run=server", "-o", "json", "-f", "-", text=pod).stdout
        name = json.loads(out)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        self.assertEqual(templates(), [])
        forged = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "sluice.dev"}}]}}},
        }
        self.create(forged)
        result = p.run("kubectl", "-n", SPACE, "create", "-f", "-", text=pod, check=False)
        self.assertIn("another client has made it", result.stderr)
        p.kubectl("-n", SPACE, "delete", "resourceclaimtemplate", name)
        # Creation that is refused denies the pod with the reason.
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"count/resourceclaimtemplates.resource.k8s.io": "0"}},
        }
        self.create(quota)
        spent = lambda: p.get("-n", SPACE, "resourcequota", "none")["status"].get("hard")
        p.wait(30, "the quota", spent)
        result = p.run("kubectl", "-n", SPACE, "create", "-f", "-", text=pod, check=False)
        self.assertIn("exceeded quota", result.stderr)
        p.kubectl("-n", SPACE, "delete", "resourcequota", "none")
        p.run("kubectl", "-n", SPACE, "create", "-f", "-", text=pod)
        self.runs("dry")
        self.assertEqual(self.budgets("dry"), {"main": [3 * GIB]})
        self.assertEqual(os.environ["CLUSTER_NODE"], p.get("-n", SPACE, "pod", "dry")["spec"]["nodeName"])
