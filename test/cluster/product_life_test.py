#!/usr/bin/python3
"""The product's life on the real control plane. Pods share no process namespace with the node here.

Uninstall, drain, and upgrade to another build of the library and back: product_upgrade_cases.py. Here: pods without
the hook; the manifests; the bytes of one training in logs, metrics, `kubectl sluice` and the simulated card.
"""

import json
import os
import re
import shutil
import tempfile
import time
import unittest

import product as p
import product_test
from product_test import EXAMPLES, SPACE, exit_of
from product_upgrade_cases import Upgrades


class Life(Upgrades, product_test.Product):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        p.other_image(p.pathlib.Path(os.environ["CLUSTER_STATE"]) / "images")
        cls.install()

    @staticmethod
    def install(*more):
        p.install("--set", "agent.config.attestation.interval_s=1", *more)
        p.wait(120, "the node to offer units", lambda: p.offered() == 200)

    def tearDown(self):
        p.kubectl(
            "-n", SPACE, "delete", "statefulsets,limitranges", "--all", "--force", "--grace-period=0", check=False
        )
        super().tearDown()

    @staticmethod
    def training_pod(*arguments, **more):
        pod = p.training_pod(*arguments, **more)
        del pod["spec"]["hostPID"]
        return pod

    def hold(self, name, annotations, seconds=1000, wrapper=(), **container):
        """A training that keeps its memory when its steps are done."""
        command = [*wrapper, *p.TRAIN, "--hold", str(seconds)]
        p.apply(self.training_pod(name, annotations, command=command, **container), SPACE)
        p.wait(120, f"{name} to have trained", lambda: "launches" in p.kubectl("-n", SPACE, "logs", name, check=False))

    def allocation(self, pod):
        found = [a for a in p.agent_status().get("allocations", []) if a["pod"] == pod and a["namespace"] == SPACE]
        self.assertEqual(len(found), 1, p.agent_status())
        return found[0]

    def test_the_same_pod_without_the_preload_is_not_hooked(self):
        # The control run: the effects in the other tests come from the hook.
        self.hold("stripped", {"sluice.dev/gpu-fraction": "0.5"}, wrapper=["/app/bin/env", "-u", "LD_PRELOAD"])
        self.assertNotIn("sluice: ", p.kubectl("-n", SPACE, "logs", "stripped"))
        p.wait(60, "the agent to notice", lambda: self.allocation("stripped")["hook_state"] == "not hooked")
        self.assertEqual(p.metric(p.agent_page("metrics"), "sluice_hook_state", pod="stripped", state="not hooked"), 1)
        p.wait(60, "the Event", lambda: "SluiceNotHooked" in p.kubectl("-n", SPACE, "describe", "pod", "stripped"))
        self.assertIn("not hooked", p.plugin("status").stdout)
        doctor = p.plugin("doctor", check=False)
        self.assertEqual(doctor.returncode, 1)
        self.assertIn(f"{SPACE}/stripped/trainer uses the GPU without the hook", doctor.stdout)

    def test_logs_top_metrics_events_and_the_simulator_agree(self):
        # A second container keeps the pod, and so its figures, when the training has ended.
        pod = self.training_pod(
            "trained",
            {"gpu-fraction.sluice.dev/trainer": "0.25", "log-level.sluice.dev/trainer": "INFO"},
            command=[*p.TRAIN, "--json", "--warm-up", "0"],
        )
        pod["spec"]["containers"] += p.idle_pod("", {})["spec"]["containers"]
        p.apply(pod, SPACE)
        ended = lambda: p.kubectl(
            "-n",
            SPACE,
            "get",
            "pod",
            "trained",
            "-o",
            "jsonpath={.status.containerStatuses[?(@.name=='trainer')].state.terminated.exitCode}",
        )
        p.wait(120, "the training to end", lambda: ended() == "0")
        log = p.kubectl("-n", SPACE, "logs", "trained", "-c", "trainer")
        line = exit_of(log)
        simulated = json.loads(next(x for x in log.splitlines() if x.startswith("{")))["simulated"]
        page = p.agent_page("metrics")
        status = json.loads(p.plugin("status", "-o", "json").stdout)
        counters = next(a for n in status for a in n["status"]["allocations"] if a["pod"] == "trained")["ended"][0]
        estimated, true = counters.get("fault_bytes", 0), simulated["total_fault_bytes"]
        for key, figure in (("fetched_bytes", "total_in_bytes"), ("evicted_bytes", "total_out_bytes")):
            bytes_ = counters[key]
            with self.subTest(key):
                self.assertGreater(bytes_, 1 << 30)
                self.assertEqual(
                    p.metric(page, f"sluice_{key}_total", pod="trained", namespace=SPACE, container="trainer"),
                    bytes_,
                )
                self.assertEqual(line[key], bytes_)
                print(f"{key}: hook, log, metrics {bytes_}, the simulated card {simulated[figure]}")
                # The card also counts the freed bytes of a chunk that is fetched as a whole.
                self.assertAlmostEqual(bytes_, simulated[figure], delta=0.02 * simulated[figure])
        print(f"bytes by faults: the hook's estimate {estimated}, the simulated card {true}")
        self.assertLessEqual(true, 64 << 20)  # the trace holds each launch's pages, and the hook predicts them
        self.assertLessEqual(estimated, 1.15 * true + (32 << 20))
        self.assertEqual(simulated["misuses"], 0)
        self.assertIn(f"{SPACE}/trained/trainer", p.plugin("top", "--once").stdout)
        self.assertIn(
            f"{SPACE}/trained/trainer", p.in_agent("/usr/bin/sluice", "top", "--once", "--run-dir", p.run_dir()).stdout
        )
        p.wait(60, "the Event", lambda: "SluiceAttached" in p.kubectl("-n", SPACE, "describe", "pod", "trained"))
        # No more than /metrics: no command, no pid, no setting.
        shown = json.loads(p.agent_page("status.json"))
        self.assertTrue(all(not a["settings"] for a in shown["allocations"]))

    def test_settings_of_a_running_pod(self):
        self.hold("live", {"sluice.dev/gpu-fraction": "0.5"})
        p.plugin("set", "live", "-n", SPACE, "memory-factor=50", "memory-limit=12Gi")
        # To the agent, and to the hook: its page shows the factor in use, and the metric its memory limit.
        p.wait(
            60,
            "the hook to follow",
            lambda: [c["factor"] for x in self.allocation("live")["processes"] for c in x["gpus"]] == [50],
        )
        p.wait(60, "the limit", lambda: p.metric(p.agent_page("metrics"), "sluice_limit_bytes", pod="live") == 12 << 30)
        # The idle pod leaves the GPU, and comes back before its next launch.
        self.assertIn("is parked", p.plugin("park", "live", "-n", SPACE).stdout)
        self.assertEqual(p.metric(p.agent_page("metrics"), "sluice_parked", pod="live"), 1)
        p.plugin("wake", "live", "-n", SPACE)
        p.wait(30, "the pod to wake", lambda: p.metric(p.agent_page("metrics"), "sluice_parked", pod="live") == 0)
        result = p.plugin("park", "live", "-n", SPACE, "-c", "none", check=False)
        self.assertEqual((result.returncode, "is unknown; accepted: " in result.stderr), (2, True), result.stderr)
        result = p.plugin("set", "live", "-n", SPACE, "memory-factor=500", check=False)
        self.assertEqual((result.returncode, "1 to 100" in result.stderr), (2, True), result.stderr)
        result = p.run(
            "kubectl", "-n", SPACE, "annotate", "--overwrite", "pod", "live", "sluice.dev/gpu-fraction=0.9", check=False
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("log-level", result.stderr)  # the list of changeable settings

    def test_a_statefulset_and_a_sidecar(self):
        labels = {"app": "set"}
        main = p.idle_pod("", {})["spec"]["containers"][0]
        helper = {**main, "name": "helper", "restartPolicy": "Always"}
        p.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": {"name": "set"},
                "spec": {
                    "replicas": 2,
                    "serviceName": "set",
                    "selector": {"matchLabels": labels},
                    "podManagementPolicy": "Parallel",
                    "template": {
                        "metadata": {
                            "labels": labels,
                            "annotations": {
                                "gpu-fraction.sluice.dev/main": "0.3",
                                "gpu-fraction.sluice.dev/helper": "0.1",
                            },
                        },
                        "spec": {"terminationGracePeriodSeconds": 0, "initContainers": [helper], "containers": [main]},
                    },
                },
            },
            SPACE,
        )
        for name in ("set-0", "set-1"):
            p.wait(120, f"{name} to run", lambda: p.phase(name, SPACE) == "Running")
            for container in ("main", "helper"):
                self.assertIn("libsluice.so", p.kubectl("-n", SPACE, "exec", name, "-c", container, "--", "env"))
        shares = sorted((a["pod"], a["container"], a["gpus"][0]["units"]) for a in p.agent_status()["allocations"])
        self.assertEqual(shares, [(n, c, u) for n in ("set-0", "set-1") for c, u in (("helper", 10), ("main", 30))])

    def test_a_limit_range(self):
        # Of the whole pod: a container's maximum would be every container's default, too.
        p.apply(
            {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "metadata": {"name": "gpu"},
                "spec": {"limits": [{"type": "Pod", "max": {"sluice.dev/gpu-percent": "30"}}]},
            },
            SPACE,
        )

        def refused():
            output = p.apply(p.idle_pod("beyond", {"sluice.dev/gpu-fraction": "0.5"}), SPACE, check=False)
            if output.returncode == 0:  # the limit range is not in force yet
                p.kubectl("-n", SPACE, "delete", "pod", "beyond", "--force", "--grace-period=0", check=False)
            return "maximum" in output.stderr

        p.wait(60, "the limit range", refused)
        self.start("within", {"sluice.dev/gpu-fraction": "0.3"})

    def free_units(self):
        node = p.get("node", os.environ["CLUSTER_NODE"])["metadata"]["annotations"]
        return sum(c["free"] for c in json.loads(node["sluice.dev/gpus"]))

    def test_the_nodes_annotation_shows_free_units(self):
        p.wait(60, "free cards", lambda: self.free_units() == 200)
        self.start("taken", {"sluice.dev/gpu-fraction": "0.7"})
        start = time.monotonic()
        p.wait(60, "70 units fewer", lambda: self.free_units() == 130)
        print(f"a running pod to the node's annotation: at most {time.monotonic() - start:.2f} s (goal: 1 s)")
        p.kubectl("-n", SPACE, "delete", "pod", "taken", "--force", "--grace-period=0")
        p.wait(60, "them back", lambda: self.free_units() == 200)

    def test_a_not_hooked_pod_is_removed_where_that_is_set(self):
        self.install("--set", "agent.notHooked=evict")
        try:
            p.wait(120, "units after the upgrade", lambda: p.offered() == 200)
            self.start("good", {"sluice.dev/gpu-fraction": "0.2"})
            p.apply(
                self.training_pod(
                    "bad",
                    {"sluice.dev/gpu-fraction": "0.5"},
                    command=["/app/bin/env", "-u", "LD_PRELOAD", *p.TRAIN, "--hold", "1000"],
                ),
                SPACE,
            )
            p.wait(120, "it to be there", lambda: p.phase("bad", SPACE) in ("Running", ""))
            p.wait(90, "its removal", lambda: p.phase("bad", SPACE) == "")
            self.assertIn("SluiceEvicted", p.kubectl("-n", SPACE, "get", "events"))
            self.assertEqual(p.phase("good", SPACE), "Running")
        finally:
            p.helm("rollback", "sluice", "-n", p.SPACE, "--wait", "--timeout", "120s")
            p.wait(120, "units after the rollback", lambda: p.offered() == 200)

    def restart_count(self, name):
        return p.get("-n", SPACE, "pod", name)["status"]["containerStatuses"][0]["restartCount"]

    def test_a_pod_at_its_memory_limit_gets_a_message_and_an_event(self):
        p.apply(
            self.training_pod("too-large", {"sluice.dev/gpu-fraction": "0.2", "sluice.dev/memory-limit": "4Gi"}), SPACE
        )
        p.wait(120, "its end", lambda: p.phase("too-large", SPACE) == "Failed")
        self.assertRegex(
            p.kubectl("-n", SPACE, "logs", "too-large"),
            r"out of memory: .* requested beside .*; memory-limit is 4.00 GiB",
        )
        p.wait(60, "the Event", lambda: "SluiceLimitReached" in p.kubectl("-n", SPACE, "describe", "pod", "too-large"))

    def test_an_image_with_its_own_preload(self):
        # The pod's variable replaces the image's: docs/operate/annotations.md shows how to keep both.
        folder = p.pathlib.Path(os.environ["CLUSTER_STATE"]) / "images"
        with tempfile.TemporaryDirectory() as root:
            p.run(
                "bash",
                "-c",
                f"for f in /usr/bin/env $(ldd /usr/bin/env | grep -o '/[^ ]*'); do install -D $f {root}/$f; done",
            )
            p.run(
                p.HERE / "oci_archive",
                "--env",
                "LD_PRELOAD=/usr/lib/mine.so",
                "sluice.test/preload:1",
                root,
                folder / "preload.tar",
                "/usr/bin/env",
            )
        p.run(p.CLUSTER, "load", folder / "preload.tar")
        container = {"name": "main", "image": "sluice.test/preload:1", "imagePullPolicy": "Never"}
        ours = "/opt/sluice/lib/libsluice.so"
        for name, annotations, env, preload in (
            ("plain", {}, [], "/usr/lib/mine.so"),
            ("lost", {"sluice.dev/gpu-fraction": "0.1"}, [], ours),
            (
                "kept",
                {"sluice.dev/gpu-fraction": "0.1"},
                [{"name": "LD_PRELOAD", "value": "/usr/lib/mine.so"}],
                ours + ":/usr/lib/mine.so",
            ),
        ):
            p.apply(p.idle_pod(name, annotations, containers=[{**container, "env": env}]), SPACE)
            p.wait(120, f"{name} to end", lambda: p.phase(name, SPACE) == "Succeeded")
            self.assertIn(f"LD_PRELOAD={preload}\n", p.kubectl("-n", SPACE, "logs", name))

    def test_a_container_without_libc(self):
        # A static program alone: no loader reads LD_PRELOAD, so the variable does no harm.
        container = {"name": "bare", "image": "sluice.test/pause:1", "imagePullPolicy": "Never"}
        self.start("bare", {"sluice.dev/gpu-fraction": "0.1"}, containers=[container])
        self.assertEqual(p.kubectl("-n", SPACE, "logs", "bare"), "")
        self.assertEqual(self.allocation("bare")["hook_state"], "expected")
        time.sleep(1)
        self.assertEqual((p.phase("bare", SPACE), self.restart_count("bare")), ("Running", 0))

    def test_the_manifests_without_helm(self):
        # As a reader applies them: the manifests' image name, the default folders of the host. This node's driver is in
        # another folder, so the node's parts run idle.
        p.run(
            "ctr",
            "-a",
            os.environ["CLUSTER_CONTAINERD"],
            "-n",
            "k8s.io",
            "images",
            "tag",
            "--force",
            f"sluice.test/sluice:{p.VERSION}",
            f"docker.io/library/sluice:{p.VERSION}",
        )
        made = [d for d in ("/var/lib/sluice", "/run/sluice", "/etc/cdi", "/run/cdi") if not os.path.exists(d)]
        p.helm("uninstall", "sluice", "-n", p.SPACE, "--wait", "--timeout", "60s")
        try:
            p.kubectl("apply", "-f", p.ROOT / "manifests" / "sluice.yaml")
            for part in ("daemonset/sluice-node", "deployment/sluice-webhook"):
                p.kubectl("-n", p.SPACE, "rollout", "status", part, "--timeout=90s")
            p.wait(
                90,
                "the webhook to be asked",
                lambda: (
                    "1.5" in p.apply(p.idle_pod("wrong", {"sluice.dev/gpu-fraction": "1.5"}), SPACE, check=False).stderr
                ),
            )
            p.kubectl("delete", "-f", p.ROOT / "manifests" / "sluice.yaml", "--wait=true", timeout=120)
        finally:
            # The garbage collector ends the node's pods after the DaemonSet: they would make the folders again.
            p.kubectl("-n", p.SPACE, "wait", "--for=delete", "pods", "-l", "app.kubernetes.io/component=node",
                      "--timeout=60s", check=False, timeout=90)  # fmt: skip
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)
            self.install()
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

    def test_examples_run(self):
        files = sorted(EXAMPLES.glob("*.yaml"))
        self.assertTrue(files)
        sleeper = f"image: {os.environ['CLUSTER_BASE']}\n{{0}}imagePullPolicy: Never\n{{0}}command: [sleep, '1000000']"
        for file in files:
            with self.subTest(file.name):
                # As it is, through the admission chain; then with images that this cluster has.
                self.assertIn(
                    "created (server dry run)", p.kubectl("-n", SPACE, "create", "--dry-run=server", "-f", file)
                )
                text = re.sub(
                    r"(?m)^( *)image: \S+", lambda m: m.group(1) + sleeper.format(m.group(1)), file.read_text()
                )
                # Init containers must end.
                text = re.sub(
                    r"(initContainers:(?:\n(?!      containers:).*)*?)command: \[sleep, '1000000'\]",
                    r"\1command: ['true']",
                    text,
                )
                text = text.replace("memory: 24Gi", "memory: 1Gi")  # this node has less
                p.apply(text, SPACE)
                pods = lambda: p.get("-n", SPACE, "pods")["items"]
                if "image:" in text:
                    p.wait(
                        120,
                        f"the pods of {file.name} to run",
                        lambda: pods() and all(x["status"]["phase"] == "Running" for x in pods()),
                    )
                    self.assertTrue([a for a in p.agent_status()["allocations"] if a["namespace"] == SPACE])
                p.kubectl(
                    "-n",
                    SPACE,
                    "delete",
                    "-f",
                    "-",
                    "--force",
                    "--grace-period=0",
                    "--wait=true",
                    text=text,
                    check=False,
                )
                p.kubectl("-n", SPACE, "wait", "--for=delete", "pods", "--all", "--timeout=120s", check=False)


def load_tests(loader, tests, pattern):
    """Not those that product_test runs."""
    names = [*vars(Life), *vars(Upgrades)]
    return unittest.TestSuite(Life(name) for name in names if name.startswith("test_"))


if __name__ == "__main__":
    p.require()
    unittest.main()
