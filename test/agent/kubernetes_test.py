#!/usr/bin/env python3
"""The agent against a real API server, with the chart's own rights and policies: kubernetes_test.py BIN_DIR TEST_DIR.

Kubelet's part (checkpoint, allocation folders) is played by the test. Skips where the control plane's programs or helm are missing.
"""
import base64, http.client, json, os, pathlib, shutil, signal, socket, ssl, subprocess, sys, tempfile, time, unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN, TOOLS = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "test" / "webhook"))
import apiserver  # noqa: E402

try:
    import yaml
except ImportError:
    sys.exit(print("SKIPPED: python3-yaml is missing (scripts/setup cluster installs it)") or 4)

SPACE, CARD = "sluice-system", "GPU-00000000-0000-0000-0000-%012d"


def helm():
    where = subprocess.run([ROOT / "test/cluster/tools/build", "--where"], capture_output=True, text=True)
    program = pathlib.Path(where.stdout.strip() or "/nowhere") / "helm"
    if not program.exists():
        sys.exit(print("SKIPPED: helm is not built; test/cluster/cluster build does it") or 4)
    return program


def wait_for(what, condition, seconds=15):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not seen within {seconds} s: {what}")
        time.sleep(0.02)


def response(run_dir):
    """A ContainerAllocateResponse (protobuf) with the one mount that matters, as kubelet's checkpoint holds it."""
    def field(number, data):
        assert len(data) < 16384
        size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
        return bytes([number << 3 | 2]) + size + data
    mount = field(1, b"/opt/sluice/run") + field(2, run_dir.encode())
    return base64.b64encode(field(2, mount)).decode()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-agent-api-"))
        (cls.folder / "api").mkdir()
        cls.server = apiserver.ApiServer(str(cls.folder / "api"), apiserver.skip_without_programs())
        cls.server.start()
        for node in ("n1", "n2"):
            cls.make("/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": node}})
        for space in (SPACE, "team"):
            cls.make("/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": space}})
        rendered = subprocess.run([helm(), "template", "sluice", ROOT / "charts/sluice", "-n", SPACE, "--set", "agent.notHooked=evict",
                                   "--show-only", "templates/rbac.yaml", "--show-only", "templates/node-policy.yaml"],
                                  capture_output=True, text=True, check=True).stdout
        folders = {"ServiceAccount": f"/api/v1/namespaces/{SPACE}/serviceaccounts", "ClusterRole": "clusterroles",
                   "ClusterRoleBinding": "clusterrolebindings", "Role": f"namespaces/{SPACE}/roles",
                   "RoleBinding": f"namespaces/{SPACE}/rolebindings", "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
                   "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings"}
        for o in filter(None, yaml.safe_load_all(rendered)):
            path = folders[o["kind"]]
            cls.make(path if path.startswith("/") else f"/apis/{o['apiVersion']}/{path}", o)
        cls.pods = {}
        cls.metrics = apiserver.free_port()
        cls.pod("agent", "n1", space=SPACE, service_account="sluice-node", units=0, ports=[{"name": "metrics", "containerPort": cls.metrics}],
                labels={"app.kubernetes.io/name": "sluice", "app.kubernetes.io/component": "node"})
        # The API server's proxy goes to a pod's address, and to no loopback one.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("10.255.255.255", 1))
            address = s.getsockname()[0]
        cls.server.call("PATCH", f"/api/v1/namespaces/{SPACE}/pods/agent/status",
                        {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}, "application/merge-patch+json")
        uid = cls.pods["agent"]["metadata"]["uid"]
        token = cls.make(f"/api/v1/namespaces/{SPACE}/serviceaccounts/sluice-node/token", {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": uid}}})
        cls.token = token["status"]["token"]
        (cls.folder / "token").write_text(cls.token)
        (cls.folder / "kubeconfig").write_text(json.dumps({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{cls.server.port}",
                                                   "certificate-authority": str(cls.folder / "api/ca.crt")}}],
            "users": [{"name": "u", "user": {"tokenFile": str(cls.folder / "token")}}]}))
        (cls.folder / "kubelet").mkdir()
        (cls.folder / "config.yaml").write_text(f"""
node: n1
kubernetes: {{enabled: true, kubeconfig: {cls.folder}/kubeconfig, kubelet_dir: {cls.folder}/kubelet}}
attestation: {{interval_s: 1, on_not_hooked: evict}}
metrics: {{listen: "0.0.0.0:{cls.metrics}"}}
""")
        cls.given = []
        cls.started = []
        cls.start_agent()

    @classmethod
    def tearDownClass(cls):
        for p in cls.started:
            p.kill()
        cls.agent.send_signal(signal.SIGTERM)
        status = cls.agent.wait(20)
        log = (cls.folder / "log").read_text()
        cls.server.stop()
        shutil.rmtree(cls.folder)
        assert status == 0 and "Sanitizer" not in log, f"the agent ended with {status}\n{log}"

    @classmethod
    def start_agent(cls):
        env = dict(os.environ, FAKE_NVML_GPUS="2", FAKE_NVML_PROCESSES=str(cls.folder / "gpu-processes"))
        cls.agent = subprocess.Popen([BIN / "sluice-agent", "--config", cls.folder / "config.yaml", "--run-dir", cls.folder / "run",
                                      "--alloc-dir", cls.folder / "alloc", "--nvml", TOOLS / "libfake-nvml.so.1"], env=env,
                                     stderr=open(cls.folder / "log", "a"))
        wait_for("the agent", lambda: cls.status() is not None)

    @classmethod
    def make(cls, path, body):
        code, answer, _ = cls.server.call("POST", path, body)
        assert code in (200, 201), (path, code, answer)
        return answer

    @classmethod
    def pod(cls, name, node, annotations=None, units=50, space="team", service_account="default", labels=None, ports=()):
        cls.pods[name] = cls.make(f"/api/v1/namespaces/{space}/pods", {
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
            "spec": {"nodeName": node, "serviceAccountName": service_account, "automountServiceAccountToken": False,
                     "terminationGracePeriodSeconds": 30, "containers": [
                {"name": "main", "image": "i", "ports": list(ports), "resources": {"limits": {"sluice.dev/gpu-percent": units}} if units else {}}]}})

    @classmethod
    def allocate(cls, name, first, count, gpu=0):
        """What plugin and kubelet do: the folder, then the checkpoint."""
        folder = cls.folder / "alloc" / f"pod-{name}"
        folder.mkdir()
        text = json.dumps({"version": 1, "id": f"pod-{name}", "gpus": [{"uuid": CARD % gpu, "units": count}]})
        (folder / ".new").write_text(text)
        (folder / ".new").rename(folder / "allocation.json")
        cls.given.append({"PodUID": cls.pods[name]["metadata"]["uid"], "ContainerName": "main", "ResourceName": "sluice.dev/gpu-percent",
                          "DeviceIDs": {"-1": [f"{CARD % gpu}::{i}" for i in range(first, first + count)]},
                          "AllocResp": response(str(folder))})
        checkpoint = cls.folder / "kubelet" / "kubelet_internal_checkpoint"
        checkpoint.with_suffix(".tmp").write_text(json.dumps({"Data": {"PodDeviceEntries": cls.given, "RegisteredDevices": {}}, "Checksum": 1}))
        checkpoint.with_suffix(".tmp").rename(checkpoint)
        wait_for("the socket", (folder / "agent.sock").exists)
        return folder

    @classmethod
    def status(cls):
        r = subprocess.run([BIN / "sluice", "status", "-o", "json", "--run-dir", cls.folder / "run"], capture_output=True, text=True)
        return json.loads(r.stdout) if r.returncode == 0 else None

    def allocation(self, name):
        return next(a for a in self.status()["allocations"] if a["id"] == f"pod-{name}")

    def cards(self):
        text = self.server.call("GET", "/api/v1/nodes/n1")[1]["metadata"].get("annotations", {}).get("sluice.dev/gpus")
        return text and json.loads(text)

    def events(self, name, reason):
        found = self.server.call("GET", "/api/v1/namespaces/team/events")[1]["items"]
        return [e for e in found if e["involvedObject"]["name"] == name and e["reason"] == reason]

    def patch(self, name, annotations):
        code, answer, _ = self.server.call("PATCH", f"/api/v1/namespaces/team/pods/{name}", {"metadata": {"annotations": annotations}},
                                           "application/merge-patch+json")
        self.assertEqual(code, 200, answer)

    def end(self, name):
        code, answer, _ = self.server.call("PATCH", f"/api/v1/namespaces/team/pods/{name}/status", {"status": {"phase": "Succeeded"}},
                                           "application/merge-patch+json")
        self.assertEqual(code, 200, answer)

    def as_agent(self, method, path, body=None, kind="application/merge-patch+json"):
        c = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=30,
                                        context=ssl.create_default_context(cafile=str(self.folder / "api/ca.crt")))
        c.request(method, path, json.dumps(body) if body is not None else None,
                  {"Authorization": "Bearer " + self.token, "Content-Type": kind})
        answer = c.getresponse()
        return answer.status, answer.read().decode()

    def test_1_cards_and_units_are_on_the_node(self):
        cards = wait_for("the annotation", self.cards)
        self.assertEqual([(c["uuid"], c["model"], c["memory"], c["free"]) for c in cards],
                         [(CARD % i, "Fake GPU", 8 << 30, 100) for i in (0, 1)])
        self.pod("first", "n1")
        start = time.monotonic()
        self.allocate("first", 0, 50)
        wait_for("50 units fewer", lambda: self.cards()[0]["free"] == 50)
        after = time.monotonic() - start
        print(f"units given to the node's annotation: {after * 1000:.0f} ms (goal: 1 s)")
        self.assertEqual(self.cards()[0]["pods"], {self.pods["first"]["metadata"]["uid"]: {"main": 50}})
        # Said twice: a scheduler that was quicker than the extender's watch asks once more.
        def said():
            return self.server.call("GET", "/api/v1/nodes/n1")[1]["metadata"]["annotations"]["sluice.dev/gpus"]
        first = said()
        wait_for("the same in other bytes", lambda: said() != first)
        self.assertEqual(json.loads(said()), json.loads(first))
        self.pod("over", "n1")
        self.allocate("over", 50, 30)
        wait_for("30 more", lambda: self.cards()[0]["free"] == 20)
        # Kubelet's checkpoint goes on naming a pod that has ended; the scheduler counts its units as free.
        self.end("over")
        wait_for("them back", lambda: self.cards()[0]["free"] == 50)

    def test_2_an_allocation_has_its_pods_name_and_settings(self):
        self.pod("named", "n1", {"sluice.dev/memory-limit": "6Gi", "sluice.dev/compute-request": "0.2"}, units=10)
        self.allocate("named", 0, 10, gpu=1)
        wait_for("its name", lambda: (self.allocation("named")["pod"], self.allocation("named")["namespace"]) == ("named", "team"))
        a = self.allocation("named")
        self.assertEqual((a["container"], a["settings"]["memory-limit"], a["settings"]["compute-request"]), ("main", "6Gi", "0.2"))
        # Live, and a value that cannot be taken changes nothing.
        start = time.monotonic()
        self.patch("named", {"sluice.dev/memory-limit": "7Gi"})
        wait_for("the change", lambda: self.allocation("named")["settings"]["memory-limit"] == "7Gi")
        print(f"annotation to the agent's settings: {(time.monotonic() - start) * 1000:.0f} ms")
        self.patch("named", {"sluice.dev/memory-limit": "lots"})
        e = wait_for("the refusal", lambda: self.events("named", "SluiceSettingRefused"))[0]
        self.assertIn("'lots' is not accepted", e["message"])
        self.assertEqual(self.allocation("named")["settings"]["memory-limit"], "7Gi")

    def test_3_annotations_raise_no_guarantee(self):
        self.pod("greedy", "n1", {"sluice.dev/gpu-memory": "1Gi"}, units=20)
        self.allocate("greedy", 10, 20, gpu=1)
        wait_for("its name", lambda: self.allocation("greedy")["pod"] == "greedy")
        self.assertEqual(self.allocation("greedy")["gpus"][0]["guaranteed_bytes"], 1 << 30)
        self.patch("greedy", {"sluice.dev/gpu-memory": "8Gi"})
        limit = (8 << 30) // 100 * 20
        wait_for("what its units are worth", lambda: self.allocation("greedy")["gpus"][0]["guaranteed_bytes"] == limit)
        self.patch("greedy", {"sluice.dev/gpu-memory": None, "sluice.dev/gpu-fraction": "0.9"})
        wait_for("its units", lambda: self.allocation("greedy")["gpus"][0]["guaranteed_bytes"] == (8 << 30) * 20 // 100)

    def test_4_events_are_on_the_pod(self):
        self.pod("busy", "n1", units=5)
        folder = self.allocate("busy", 30, 5, gpu=1)
        for _ in range(3):
            self.started.append(subprocess.Popen([TOOLS / "fake_hook", folder / "agent.sock", "5000"], stdin=subprocess.PIPE,
                                                 stdout=subprocess.DEVNULL))
        e = wait_for("attached", lambda: self.events("busy", "SluiceAttached"))[0]
        self.assertEqual((e["type"], e["involvedObject"]["uid"], e["involvedObject"]["fieldPath"], e["source"]["host"]),
                         ("Normal", self.pods["busy"]["metadata"]["uid"], "spec.containers{main}", "n1"))
        self.assertIn("hook 0.0.0-fake", e["message"])
        wait_for("one Event that counts", lambda: [e["count"] for e in self.events("busy", "SluiceAttached")] == [3])
        for word, reason, kind in (("thrash-began", "SluiceThrash", "Warning"), ("thrash-ended", "SluiceThrashEnded", "Normal"),
                                   ("notice", "SluiceLimitReached", "Warning")):
            self.started[-1].stdin.write(f"{word} live 6 GiB\n".encode())
            self.started[-1].stdin.flush()
            e = wait_for(reason, lambda: self.events("busy", reason))[0]
            self.assertEqual((e["type"], "live 6 GiB" in e["message"]), (kind, True))

    def test_5_reservations_for_the_plugin(self):
        self.pod("reserved", "n1", {"sluice.dev/placement": json.dumps({"main": [CARD % 0]})}, units=15)
        uid = self.pods["reserved"]["metadata"]["uid"]

        def reserved():
            pods = json.loads((self.folder / "run/reservations.json").read_text())["pods"]
            return next((x for x in pods if x["uid"] == uid), None)

        self.assertEqual(wait_for("the reservation", reserved), {"uid": uid, "containers": [{"name": "main", "kind": "regular", "units": 15}],
                                                             "placement": {"main": [CARD % 0]}})
        self.end("reserved")
        wait_for("its end", lambda: reserved() is None)

    def test_6_a_pod_that_is_not_hooked_is_removed(self):
        self.pod("stripped", "n1", units=5)
        folder = self.allocate("stripped", 40, 5, gpu=1)
        wait_for("its name", lambda: self.allocation("stripped")["pod"] == "stripped")
        p = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], "SLUICE_SOCKET": str(folder / "agent.sock")})
        self.started.append(p)
        (self.folder / "gpu-processes").write_text(f"{p.pid}\n")
        for reason in ("SluiceNotHooked", "SluiceEvicted"):
            self.assertEqual(wait_for(reason, lambda: self.events("stripped", reason))[0]["type"], "Warning")
        wait_for("its end", lambda: "deletionTimestamp" in self.server.call("GET", "/api/v1/namespaces/team/pods/stripped")[1]["metadata"])
        self.assertNotIn("deletionTimestamp", self.server.call("GET", "/api/v1/namespaces/team/pods/first")[1]["metadata"])

    def test_7_the_agents_token_may_do_no_more(self):
        self.pod("far", "n2", units=0)
        mark = {"metadata": {"annotations": {"sluice.dev/gpus": "[]"}}}
        wait_for("the policy", lambda: "may not change node n2" in self.as_agent("PATCH", "/api/v1/nodes/n2/status", mark)[1], 30)
        for what, method, path, body, said in [
            ("another annotation", "PATCH", "/api/v1/nodes/n1/status", {"metadata": {"annotations": {"x": "y"}}}, "nothing of a node but"),
            ("a label", "PATCH", "/api/v1/nodes/n1/status", {"metadata": {"labels": {"x": "y"}}}, "nothing of a node but"),
            ("capacity", "PATCH", "/api/v1/nodes/n1/status", {"status": {"capacity": {"x.y/z": "1"}}}, "nothing of a node but"),
            ("the node itself", "PATCH", "/api/v1/nodes/n1", mark, "cannot patch resource"),
            ("a pod of another node", "DELETE", "/api/v1/namespaces/team/pods/far", None, "may not remove pods of other nodes"),
            ("a pod's annotations", "PATCH", "/api/v1/namespaces/team/pods/first", mark, "cannot patch resource"),
            ("Secrets", "GET", f"/api/v1/namespaces/{SPACE}/secrets", None, "cannot list resource"),
        ]:
            with self.subTest(what):
                code, answer = self.as_agent(method, path, body)
                self.assertIn(code, (403, 422), answer)
                self.assertIn(said, answer)
        self.assertEqual(self.as_agent("PATCH", "/api/v1/nodes/n1/status", mark)[0], 200)  # its own

    def kubectl(self, *arguments):
        env = dict(os.environ, KUBECONFIG=str(self.folder / "api/kubeconfig"), PATH=f"{BIN}:{self.server.programs}:{os.environ['PATH']}")
        return subprocess.run(["kubectl", "sluice", *arguments], capture_output=True, text=True, env=env)

    def test_8_kubectl_sluice(self):
        said = self.kubectl("status", "-o", "json")
        self.assertEqual(said.returncode, 0, said.stderr)
        shown = json.loads(said.stdout)
        self.assertEqual([x["node"] for x in shown], ["n1"])
        named = next(a for a in shown[0]["status"]["allocations"] if a["pod"] == "named")
        self.assertEqual((named["namespace"], named["settings"], named["gpus"][0]["units"]), ("team", {}, 10))
        self.assertIn("team/named/main", self.kubectl("top", "--once").stdout)
        self.assertIn("node n1\n", self.kubectl("status").stdout)
        none = self.kubectl("status", "--node", "n9")
        self.assertEqual((none.returncode, "no agent runs on node 'n9'" in none.stderr), (1, True), none.stderr)
        doctor = self.kubectl("doctor")  # no webhook here, and no plugin that offers units
        self.assertEqual(doctor.returncode, 1)
        for text in ("BAD   webhook: not registered", "BAD   node n1: 2 GPU(s), and no sluice.dev/gpu-percent is offered",
                     "stripped/main uses the GPU without the hook"):
            self.assertIn(text, doctor.stdout)
        self.assertRegex(doctor.stdout, r"ok    placement: \d+ pods with a fraction placed, none waits")
        self.assertEqual(self.kubectl("set", "named", "-n", "team", "memory-factor=70", "memory-limit=6Gi").returncode, 0)
        wait_for("the agent to follow", lambda: self.allocation("named")["settings"].get("memory-factor") == "70")
        for wrong, why in (("memory-factor=700", "1 to 100"), ("gpu-fraction=0.9", "accepted: key=value"), ("nonsense", "accepted: key=value")):
            said = self.kubectl("set", "named", "-n", "team", wrong)
            self.assertEqual((said.returncode, why in said.stderr), (2, True), said.stderr)
        self.assertEqual(self.kubectl("set", "nobody", "-n", "team", "memory-factor=70").returncode, 1)

    def test_9_restarts(self):
        """Of the API server, then of the agent: nothing is lost, what happened meanwhile is made up for."""
        self.server.restart()
        self.pod("later", "n1", units=7)
        self.allocate("later", 60, 7)
        wait_for("its units", lambda: any(self.pods["later"]["metadata"]["uid"] in c["pods"] for c in self.cards() or []), 60)
        self.agent.kill()
        self.agent.wait()
        self.patch("named", {"sluice.dev/memory-limit": "5Gi"})
        self.start_agent()
        wait_for("name and settings", lambda: (self.allocation("named")["pod"], self.allocation("named")["settings"].get("memory-limit"))
                 == ("named", "5Gi"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], warnings="ignore")
