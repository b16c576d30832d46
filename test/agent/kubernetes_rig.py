"""A real API server with the chart's rights and policies, and an agent on node n1: the rig of kubernetes_test.py.

The rig plays kubelet: its checkpoint, and the allocation folders.
"""

import base64
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN, TOOLS = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "test" / "lib"))
from harness import wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "test" / "webhook"))
import apiserver  # noqa: E402

sys.path.insert(0, str(ROOT / "test" / "security"))
import attacker  # noqa: E402

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


def response(run_dir):
    """A ContainerAllocateResponse (protobuf) with the mount of the run directory, as in kubelet's checkpoint."""

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
        rendered = subprocess.run(
            [
                helm(),
                "template",
                "sluice",
                ROOT / "charts/sluice",
                "-n",
                SPACE,
                "--set",
                "agent.notHooked=evict",
                "--show-only",
                "templates/rbac.yaml",
                "--show-only",
                "templates/node-policy.yaml",
                "--set",
                "metrics.authentication=kubernetes",
                "--show-only",
                "templates/metrics.yaml",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        folders = {
            "ServiceAccount": f"/api/v1/namespaces/{SPACE}/serviceaccounts",
            "ClusterRole": "clusterroles",
            "ClusterRoleBinding": "clusterrolebindings",
            "Role": f"namespaces/{SPACE}/roles",
            "RoleBinding": f"namespaces/{SPACE}/rolebindings",
            "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
        }
        for o in filter(None, yaml.safe_load_all(rendered)):
            path = folders[o["kind"]]
            cls.make(path if path.startswith("/") else f"/apis/{o['apiVersion']}/{path}", o)
        cls.pods = {}
        cls.metrics = apiserver.free_port()
        cls.pod(
            "agent",
            "n1",
            space=SPACE,
            service_account="sluice-node",
            units=0,
            ports=[{"name": "metrics", "containerPort": cls.metrics}],
            labels={"app.kubernetes.io/name": "sluice", "app.kubernetes.io/component": "node"},
        )
        # The API server's proxy refuses loopback addresses of pods.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("10.255.255.255", 1))
            address = s.getsockname()[0]
        cls.server.call(
            "PATCH",
            f"/api/v1/namespaces/{SPACE}/pods/agent/status",
            {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}},
            "application/merge-patch+json",
        )
        uid = cls.pods["agent"]["metadata"]["uid"]
        token = cls.make(
            f"/api/v1/namespaces/{SPACE}/serviceaccounts/sluice-node/token",
            {
                "kind": "TokenRequest",
                "apiVersion": "authentication.k8s.io/v1",
                "spec": {
                    "expirationSeconds": 3600,
                    "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": uid},
                },
            },
        )
        cls.token = token["status"]["token"]
        (cls.folder / "token").write_text(cls.token)
        (cls.folder / "kubeconfig").write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                "server": f"https://127.0.0.1:{cls.server.port}",
                                "certificate-authority": str(cls.folder / "api/ca.crt"),
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"tokenFile": str(cls.folder / "token")}}],
                }
            )
        )
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
        cls.agent = subprocess.Popen(
            [
                BIN / "sluice-agent",
                "--config",
                cls.folder / "config.yaml",
                "--run-dir",
                cls.folder / "run",
                "--alloc-dir",
                cls.folder / "alloc",
                "--nvml",
                TOOLS / "libfake-nvml.so.1",
            ],
            env=env,
            stderr=open(cls.folder / "log", "a"),
        )
        wait_for("the agent", lambda: cls.status() is not None)

    @classmethod
    def make(cls, path, body):
        code, answer, _ = cls.server.call("POST", path, body)
        assert code in (200, 201), (path, code, answer)
        return answer

    @classmethod
    def pod(
        cls, name, node, annotations=None, units=50, space="team", service_account="default", labels=None, ports=()
    ):
        cls.pods[name] = cls.make(
            f"/api/v1/namespaces/{space}/pods",
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": service_account,
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 30,
                    "containers": [
                        {
                            "name": "main",
                            "image": "i",
                            "ports": list(ports),
                            "resources": {"limits": {"sluice.dev/gpu-percent": units}} if units else {},
                        }
                    ],
                },
            },
        )

    @classmethod
    def allocate(cls, name, first, count, gpu=0):
        """Acts for plugin and kubelet: makes the folder, then the checkpoint."""
        folder = cls.folder / "alloc" / f"pod-{name}"
        folder.mkdir()
        text = json.dumps({"version": 1, "id": f"pod-{name}", "gpus": [{"uuid": CARD % gpu, "units": count}]})
        (folder / ".new").write_text(text)
        (folder / ".new").rename(folder / "allocation.json")
        cls.given.append(
            {
                "PodUID": cls.pods[name]["metadata"]["uid"],
                "ContainerName": "main",
                "ResourceName": "sluice.dev/gpu-percent",
                "DeviceIDs": {"-1": [f"{CARD % gpu}::{i}" for i in range(first, first + count)]},
                "AllocResp": response(str(folder)),
            }
        )
        checkpoint = cls.folder / "kubelet" / "kubelet_internal_checkpoint"
        checkpoint.with_suffix(".tmp").write_text(
            json.dumps({"Data": {"PodDeviceEntries": cls.given, "RegisteredDevices": {}}, "Checksum": 1})
        )
        checkpoint.with_suffix(".tmp").rename(checkpoint)
        wait_for("the socket", (folder / "agent.sock").exists)
        return folder

    @classmethod
    def status(cls):
        r = subprocess.run(
            [BIN / "sluice", "status", "-o", "json", "--run-dir", cls.folder / "run"], capture_output=True, text=True
        )
        return json.loads(r.stdout) if r.returncode == 0 else None

    def in_pod(self, name, *command):
        """A process in the cgroup that kubelet would have made for the pod."""
        try:
            procs = attacker.pod_cgroup(self.pods[name]["metadata"]["uid"], "c")
        except attacker.Skipped as why:
            self.skipTest(str(why))
        p = subprocess.Popen(["sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *command])
        self.started.append(p)
        return p

    def allocation(self, name):
        return next(a for a in self.status()["allocations"] if a["id"] == f"pod-{name}")

    def cards(self):
        text = self.server.call("GET", "/api/v1/nodes/n1")[1]["metadata"].get("annotations", {}).get("sluice.dev/gpus")
        return text and json.loads(text)

    def events(self, name, reason):
        found = self.server.call("GET", "/api/v1/namespaces/team/events")[1]["items"]
        return [e for e in found if e["involvedObject"]["name"] == name and e["reason"] == reason]

    def patch(self, name, annotations):
        code, answer, _ = self.server.call(
            "PATCH",
            f"/api/v1/namespaces/team/pods/{name}",
            {"metadata": {"annotations": annotations}},
            "application/merge-patch+json",
        )
        self.assertEqual(code, 200, answer)

    def end(self, name):
        code, answer, _ = self.server.call(
            "PATCH",
            f"/api/v1/namespaces/team/pods/{name}/status",
            {"status": {"phase": "Succeeded"}},
            "application/merge-patch+json",
        )
        self.assertEqual(code, 200, answer)

    def as_agent(self, method, path, body=None, kind="application/merge-patch+json"):
        c = http.client.HTTPSConnection(
            "127.0.0.1",
            self.server.port,
            timeout=30,
            context=ssl.create_default_context(cafile=str(self.folder / "api/ca.crt")),
        )
        c.request(
            method,
            path,
            json.dumps(body) if body is not None else None,
            {"Authorization": "Bearer " + self.token, "Content-Type": kind},
        )
        answer = c.getresponse()
        return answer.status, answer.read().decode()

    def kubectl(self, *arguments):
        env = dict(
            os.environ,
            KUBECONFIG=str(self.folder / "api/kubeconfig"),
            PATH=f"{BIN}:{self.server.programs}:{os.environ['PATH']}",
        )
        return subprocess.run(["kubectl", "sluice", *arguments], capture_output=True, text=True, env=env)
