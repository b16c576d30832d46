#!/usr/bin/env python3
"""The agent against a real API server, with the chart's own rights and policies.

kubernetes_test.py BIN_DIR TEST_DIR. It is skipped where the control plane's programs or helm are missing.
"""

import http.client
import json
import ssl
import subprocess
import sys
import time
import unittest

from kubernetes_rig import CARD, SPACE, TOOLS, Case, wait_for


class Test(Case):
    def test_1_gpus_and_units_are_on_the_node(self):
        cards = wait_for("the annotation", self.cards)
        self.assertEqual(
            [(c["uuid"], c["model"], c["memory"], c["free"]) for c in cards],
            [(CARD % i, "Fake GPU", 8 << 30, 100) for i in (0, 1)],
        )
        self.pod("first", "n1")
        start = time.monotonic()
        self.allocate("first", 0, 50)
        wait_for("50 units fewer", lambda: self.cards()[0]["free"] == 50)
        after = time.monotonic() - start
        print(f"units given to the node's annotation: {after * 1000:.0f} ms (goal: 1 s)")
        self.assertEqual(self.cards()[0]["pods"], {self.pods["first"]["metadata"]["uid"]: {"main": 50}})

        # Written twice: it makes a scheduler ask again that was faster than the extender's watch.
        def annotation():
            return self.server.call("GET", "/api/v1/nodes/n1")[1]["metadata"]["annotations"]["sluice.dev/gpus"]

        first = annotation()
        wait_for("the same in other bytes", lambda: annotation() != first)
        self.assertEqual(json.loads(annotation()), json.loads(first))
        self.pod("over", "n1")
        self.allocate("over", 50, 30)
        wait_for("30 more", lambda: self.cards()[0]["free"] == 20)
        # Kubelet's checkpoint still lists a pod that has ended; the scheduler counts its units as free.
        self.end("over")
        wait_for("the units back", lambda: self.cards()[0]["free"] == 50)

    def test_2_an_allocation_has_the_name_and_settings_of_its_pod(self):
        self.pod("named", "n1", {"sluice.dev/memory-limit": "6Gi", "sluice.dev/compute-request": "0.2"}, units=10)
        self.allocate("named", 0, 10, gpu=1)
        wait_for(
            "its name",
            lambda: (self.allocation("named")["pod"], self.allocation("named")["namespace"]) == ("named", "team"),
        )
        a = self.allocation("named")
        self.assertEqual(
            (a["container"], a["settings"]["memory-limit"], a["settings"]["compute-request"]), ("main", "6Gi", "0.2")
        )
        # A change applies live, and a wrong value changes nothing.
        start = time.monotonic()
        self.patch("named", {"sluice.dev/memory-limit": "7Gi"})
        wait_for("the change", lambda: self.allocation("named")["settings"]["memory-limit"] == "7Gi")
        print(f"annotation to the agent's settings: {(time.monotonic() - start) * 1000:.0f} ms")
        self.patch("named", {"sluice.dev/memory-limit": "lots"})
        e = wait_for("the refusal", lambda: self.events("named", "SluiceSettingRefused"))[0]
        self.assertIn("'lots' is not accepted", e["message"])
        self.assertEqual(self.allocation("named")["settings"]["memory-limit"], "7Gi")

    def test_3_another_size_of_a_running_pod(self):
        self.pod("greedy", "n1", {"sluice.dev/gpu-memory": "1Gi"}, units=20)
        self.allocate("greedy", 10, 20, gpu=1)
        uid = self.pods["greedy"]["metadata"]["uid"]

        def guaranteed(percent):
            return lambda: self.allocation("greedy")["gpus"][0]["guaranteed_bytes"] == (8 << 30) * percent // 100

        def granted():
            pod = self.server.call("GET", "/api/v1/namespaces/team/pods/greedy")[1]
            return json.loads(pod["metadata"]["annotations"].get("sluice.dev/granted", "{}")).get("main")

        def grown():
            pods = json.loads((self.folder / "run/reservations.json").read_text())["pods"]
            return next(x for x in pods if x["uid"] == uid).get("grown")

        wait_for("its name", lambda: self.allocation("greedy")["pod"] == "greedy")
        self.assertEqual(self.allocation("greedy")["gpus"][0]["guaranteed_bytes"], 1 << 30)
        self.patch("greedy", {"sluice.dev/gpu-memory": "8Gi"})
        wait_for("all that the GPU has left", guaranteed(90))
        e = wait_for("the Event", lambda: self.events("greedy", "SluiceResizeWaits"))[0]
        self.assertEqual(e["type"], "Warning")
        self.assertIn("container main requests 1 of GPU", e["message"])
        worth = (8 << 30) * 90 // 100
        wait_for("the answer", lambda: granted() == {"percent": 90, "requested": 100, "memory": worth})
        wait_for("the node's annotation", lambda: self.cards()[1]["free"] == 0)
        self.assertEqual(grown(), {CARD % 1: 70})
        output = self.kubectl("set", "greedy", "-n", "team", "gpu-fraction=0.5")  # in place of the bytes
        self.assertEqual(output.returncode, 0, output.stderr)
        wait_for("half of it", guaranteed(50))
        wait_for("the answer", lambda: granted() == {"percent": 50, "requested": 50})
        self.assertIn("has 0.5 of GPU", wait_for("told", lambda: self.events("greedy", "SluiceResized"))[0]["message"])
        wait_for("the rest", lambda: self.cards()[1]["free"] == 40)
        self.agent.kill()
        self.agent.wait()
        self.assertEqual(grown(), {CARD % 1: 30})  # for the plugin, while the agent is down
        self.start_agent()
        wait_for("the size after a restart", guaranteed(50))
        self.assertEqual(self.cards()[1]["free"], 40)
        # Number of GPUs: the webhook denies it; without the webhook it changes nothing.
        self.patch("greedy", {"sluice.dev/gpu-fraction": "2"})
        e = wait_for("the refusal", lambda: self.events("greedy", "SluiceSettingRefused"))[0]
        self.assertIn("runs on 1 GPU and keeps this number", e["message"])
        self.assertTrue(guaranteed(50)())
        self.patch("greedy", {"sluice.dev/gpu-fraction": "0.2"})
        wait_for("its units", guaranteed(20))
        wait_for("the answer", lambda: granted() == {"percent": 20, "requested": 20})
        wait_for("free again", lambda: self.cards()[1]["free"] == 70)

    def test_4_events_are_on_the_pod(self):
        self.pod("busy", "n1", units=5)
        folder = self.allocate("busy", 30, 5, gpu=1)
        for _ in range(3):
            self.started.append(
                subprocess.Popen(
                    [TOOLS / "fake_hook", folder / "agent.sock", "5000"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                )
            )
        e = wait_for("attached", lambda: self.events("busy", "SluiceAttached"))[0]
        self.assertEqual(
            (e["type"], e["involvedObject"]["uid"], e["involvedObject"]["fieldPath"], e["source"]["host"]),
            ("Normal", self.pods["busy"]["metadata"]["uid"], "spec.containers{main}", "n1"),
        )
        self.assertIn("hook 0.0.0-fake", e["message"])
        wait_for("one Event that counts", lambda: [e["count"] for e in self.events("busy", "SluiceAttached")] == [3])
        for word, reason, kind in (
            ("thrash-began", "SluiceThrash", "Warning"),
            ("thrash-ended", "SluiceThrashEnded", "Normal"),
            ("notice", "SluiceLimitReached", "Warning"),
        ):
            self.started[-1].stdin.write(f"{word} live 6 GiB\n".encode())
            self.started[-1].stdin.flush()
            e = wait_for(reason, lambda reason=reason: self.events("busy", reason))[0]
            self.assertEqual((e["type"], "live 6 GiB" in e["message"]), (kind, True))

    def test_5_reservations_for_the_plugin(self):
        self.pod("reserved", "n1", {"sluice.dev/placement": json.dumps({"main": [CARD % 0]})}, units=15)
        uid = self.pods["reserved"]["metadata"]["uid"]

        def reserved():
            pods = json.loads((self.folder / "run/reservations.json").read_text())["pods"]
            return next((x for x in pods if x["uid"] == uid), None)

        found = wait_for("the reservation", reserved)
        self.assertGreater(found.pop("order"), 0)
        self.assertEqual(
            found,
            {
                "uid": uid,
                "containers": [{"name": "main", "kind": "regular", "units": 15}],
                "placement": {"main": [CARD % 0]},
            },
        )
        self.end("reserved")
        wait_for("its end", lambda: reserved() is None)

    def test_6_a_pod_without_the_hook_is_deleted(self):
        self.pod("stripped", "n1", units=5)
        folder = self.allocate("stripped", 40, 5, gpu=1)
        wait_for("its name", lambda: self.allocation("stripped")["pod"] == "stripped")
        self.assertTrue(folder.exists())
        p = self.in_pod("stripped", "sleep", "1000")
        (self.folder / "gpu-processes").write_text(f"{p.pid}@1\n")
        for reason in ("SluiceNotHooked", "SluiceEvicted"):
            self.assertEqual(
                wait_for(reason, lambda reason=reason: self.events("stripped", reason))[0]["type"], "Warning"
            )
        wait_for(
            "its end",
            lambda: (
                "deletionTimestamp" in self.server.call("GET", "/api/v1/namespaces/team/pods/stripped")[1]["metadata"]
            ),
        )
        self.assertNotIn(
            "deletionTimestamp", self.server.call("GET", "/api/v1/namespaces/team/pods/first")[1]["metadata"]
        )

    def test_7_the_agents_token_has_no_further_rights(self):
        self.pod("far", "n2", units=0)
        mark = {"metadata": {"annotations": {"sluice.dev/gpus": "[]"}}}
        status = "/api/v1/namespaces/team/pods/%s/status"
        answer = {"metadata": {"annotations": {"sluice.dev/granted": "{}"}}}
        wait_for(
            "the policy",
            lambda: "may not change node n2" in self.as_agent("PATCH", "/api/v1/nodes/n2/status", mark)[1],
            30,
        )
        for what, method, path, body, output in [
            (
                "another annotation",
                "PATCH",
                "/api/v1/nodes/n1/status",
                {"metadata": {"annotations": {"x": "y"}}},
                "nothing of a node but",
            ),
            (
                "a label",
                "PATCH",
                "/api/v1/nodes/n1/status",
                {"metadata": {"labels": {"x": "y"}}},
                "nothing of a node but",
            ),
            (
                "capacity",
                "PATCH",
                "/api/v1/nodes/n1/status",
                {"status": {"capacity": {"x.y/z": "1"}}},
                "nothing of a node but",
            ),
            ("the node itself", "PATCH", "/api/v1/nodes/n1", mark, "cannot patch resource"),
            (
                "a pod of another node",
                "DELETE",
                "/api/v1/namespaces/team/pods/far",
                None,
                "may not remove pods of other nodes",
            ),
            ("a pod's annotations", "PATCH", "/api/v1/namespaces/team/pods/first", mark, "cannot patch resource"),
            ("a pod's status", "PATCH", status % "first", {"status": {"phase": "Failed"}}, "nothing of a pod but"),
            ("another answer", "PATCH", status % "first", mark, "nothing of a pod but"),
            ("a far pod's answer", "PATCH", status % "far", answer, "may not change pods of other nodes"),
            ("Secrets", "GET", f"/api/v1/namespaces/{SPACE}/secrets", None, "cannot list resource"),
        ]:
            with self.subTest(what):
                code, told = self.as_agent(method, path, body)
                self.assertIn(code, (403, 422), told)
                self.assertIn(output, told)
        self.assertEqual(self.as_agent("PATCH", "/api/v1/nodes/n1/status", mark)[0], 200)  # its own node

    def test_8_kubectl_sluice(self):
        output = self.kubectl("status", "-o", "json")
        self.assertEqual(output.returncode, 0, output.stderr)
        shown = json.loads(output.stdout)
        self.assertEqual([x["node"] for x in shown], ["n1"])
        named = next(a for a in shown[0]["status"]["allocations"] if a["pod"] == "named")
        self.assertEqual((named["namespace"], named["settings"], named["gpus"][0]["units"]), ("team", {}, 10))
        self.assertIn("team/named/main", self.kubectl("top", "--once").stdout)
        self.assertIn("node n1\n", self.kubectl("status").stdout)
        none = self.kubectl("status", "--node", "n9")
        self.assertEqual((none.returncode, "no agent runs on node 'n9'" in none.stderr), (1, True), none.stderr)
        doctor = self.kubectl("doctor")  # the rig has no webhook, and no plugin that offers units
        self.assertEqual(doctor.returncode, 1)
        for text in (
            "BAD   webhook: not registered",
            "BAD   node n1: 2 GPU(s), and no sluice.dev/gpu-percent is offered",
            "stripped/main uses the GPU without the hook",
        ):
            self.assertIn(text, doctor.stdout)
        self.assertRegex(doctor.stdout, r"ok    placement: \d+ pods with a fraction placed, none waits")
        self.assertEqual(
            self.kubectl("set", "named", "-n", "team", "memory-factor=70", "memory-limit=6Gi").returncode, 0
        )
        wait_for("the agent to follow", lambda: self.allocation("named")["settings"].get("memory-factor") == "70")
        for wrong, why in (
            ("memory-factor=700", "1 to 100"),
            ("visible-memory=limit", "accepted: key=value"),
            ("nonsense", "accepted: key=value"),
        ):
            output = self.kubectl("set", "named", "-n", "team", wrong)
            self.assertEqual((output.returncode, why in output.stderr), (2, True), output.stderr)
        self.assertEqual(self.kubectl("set", "unknown", "-n", "team", "memory-factor=70").returncode, 1)

    def test_8a_another_pods_process_is_refused(self):
        sock = self.folder / "alloc" / "pod-named" / "agent.sock"
        before = len(self.events("first", "SluiceForgedIdentity"))
        self.in_pod("first", TOOLS / "fake_hook", sock, "500")
        wait_for("the Event on its own pod", lambda: len(self.events("first", "SluiceForgedIdentity")) > before)
        self.assertFalse(self.events("named", "SluiceForgedIdentity") or self.events("named", "SluiceRefused"))
        self.assertNotEqual(self.allocation("named")["hook_state"], "refused")

    def test_8b_a_pod_on_a_gpu_that_it_was_not_given(self):
        self.pod("guest", "n1", units=0)
        p = self.in_pod("guest", "sleep", "1000")
        began = time.monotonic()
        (self.folder / "gpu-processes").write_text(f"{p.pid}\n")
        wait_for("the status", lambda: [f for f in self.status()["foreign"] if f["pod"] == "guest"])
        self.assertLess(time.monotonic() - began, 2.5)
        for reason in ("SluiceForeignCard", "SluiceEvicted"):
            wait_for(reason, lambda reason=reason: self.events("guest", reason))
        wait_for(
            "its end",
            lambda: "deletionTimestamp" in self.server.call("GET", "/api/v1/namespaces/team/pods/guest")[1]["metadata"],
        )

    def test_8c_metrics_for_those_whom_the_api_server_allows(self):
        text = (self.folder / "config.yaml").read_text()
        (self.folder / "config.yaml").write_text(text.replace("metrics: {", "metrics: {authentication: kubernetes, "))
        self.addCleanup((self.folder / "config.yaml").write_text, text)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def get(path, token=None):
            c = http.client.HTTPSConnection("127.0.0.1", self.metrics, timeout=10, context=context)
            c.request("GET", path, headers={"Authorization": "Bearer " + token} if token else {})
            answer = c.getresponse()
            return answer.status, answer.read().decode()

        def open_port():
            try:
                return get("/healthz")[0] == 200
            except OSError:
                return False

        wait_for("HTTPS", open_port)
        self.make(
            f"/api/v1/namespaces/{SPACE}/serviceaccounts",
            {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "scraper"}},
        )
        ask = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 3600}}
        token = self.make(f"/api/v1/namespaces/{SPACE}/serviceaccounts/scraper/token", ask)["status"]["token"]
        self.assertEqual(get("/metrics")[0], 401)
        self.assertEqual(get("/metrics", "wrong")[0], 401)
        code, output = get("/metrics", token)
        self.assertEqual((code, "may not get the non-resource URL /metrics" in output), (403, True), output)
        self.make(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "kind": "ClusterRoleBinding",
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": "scraper"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "sluice-metrics-reader",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": SPACE}],
            },
        )
        wait_for("the refusal to be forgotten", lambda: get("/metrics", token)[0] == 200, 20)
        self.assertIn('allocation="pod-named"', get("/metrics", token)[1])  # ids, for authenticated readers

    def test_9_restarts_lose_no_change(self):
        """Of the API server, then of the agent: changes meanwhile are applied afterwards."""
        self.server.restart()
        self.pod("later", "n1", units=7)
        self.allocate("later", 60, 7)
        wait_for(
            "its units", lambda: any(self.pods["later"]["metadata"]["uid"] in c["pods"] for c in self.cards() or []), 60
        )
        self.agent.kill()
        self.agent.wait()
        self.patch("named", {"sluice.dev/memory-limit": "5Gi"})
        self.start_agent()
        wait_for(
            "name and settings",
            lambda: (
                (self.allocation("named")["pod"], self.allocation("named")["settings"].get("memory-limit"))
                == ("named", "5Gi")
            ),
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], warnings="ignore")
