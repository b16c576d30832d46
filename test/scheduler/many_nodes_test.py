#!/usr/bin/env python3
"""kubectl sluice top, status and doctor ask the agents of many nodes at once, through one kubectl process.

many_nodes_test.py SLUICE [--nodes N]

The API server is a fake one (test/lib/fake_apiserver.py), kubectl is real. experiments/bench/many_nodes.py measures.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import many_nodes

options = None

# A kubectl without `proxy`, of a chart that was installed with --set nameOverride=gpu-share.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys, time
a = sys.argv[1:]
open(os.environ["KUBECTL_LOG"], "a").write(" ".join(a) + "\\n")
def out(o): print(json.dumps(o)); sys.exit(0)
if a[:2] == ["get", "--raw"]:
    time.sleep(0.2)
    out({"agentVersion": "0.1.0", "unixMs": "1", "gpus": [{"uuid": "GPU-1", "memoryBytes": "85520809984"}]})
if "mutatingwebhookconfigurations" in a:
    out({"items": [{"metadata": {"name": "gpu-share"}, "webhooks":
        [{"name": "mutate.sluice.dev", "clientConfig": {"caBundle": "x"}}]}]})
if a[:2] == ["get", "pods"] and "-l" in a:
    wanted = dict(x.split("=") for x in a[a.index("-l") + 1].split(","))
    if wanted["app.kubernetes.io/name"] != "gpu-share": out({"items": []})
    name = wanted["app.kubernetes.io/component"]
    out({"items": [{"metadata": {"name": f"{name}-{i}", "namespace": "s"}, "spec": {"nodeName": f"n{i}", "containers":
        [{"ports": [{"name": "metrics", "containerPort": 9402}]}]}, "status": {"conditions":
        [{"type": "Ready", "status": "True"}]}} for i in range(20)]})
if a[:2] == ["get", "pods"] or "resourceslices" in a: out({"items": []})
if a[:2] == ["get", "nodes"]:
    out({"items": [{"metadata": {"name": f"n{i}", "annotations": {"sluice.dev/gpus": "[]"}},
        "status": {"allocatable": {"sluice.dev/gpu-percent": "100"}}} for i in range(20)]})
sys.stderr.write("error: unknown command\\n")
sys.exit(1)
"""


def left_behind(folder):
    return [p.name for p in folder.glob("sluice-*")]


class WithKubectl(unittest.TestCase):
    def setUp(self):
        kubectl = many_nodes.find_kubectl()
        if kubectl is None:
            self.skipTest("there is no kubectl; test/cluster/tools/build builds one")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mn-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.kubectl = kubectl

    def cluster(self, **more):
        made = many_nodes.ManyNodes(options.program, self.kubectl, self.folder, options.nodes, 500, **more)
        self.addCleanup(made.server.close)
        return made

    def check_cost(self, cluster, done, unreachable=0):
        """One proxy for all, and a process for each agent that the proxy cannot reach: it is asked by an exec."""
        self.assertEqual([c.split()[0] for c in done.calls], ["proxy"] + ["exec"] * unreachable)
        self.assertGreaterEqual(cluster.server.most, 16)
        self.assertLessEqual(cluster.server.most, 64)
        self.assertEqual(left_behind(self.folder), [])

    def test_all_nodes_at_once(self):
        cluster = self.cluster(down=(3,))
        done = cluster.run("status", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = json.loads(done.stdout)
        self.assertEqual([n["node"] for n in shown], [f"node-{i:05d}" for i in range(options.nodes)])
        self.assertEqual(shown[5]["status"]["gpus"][0]["uuid"], "GPU-00005-0000")
        self.assertIn("connection refused", shown[3]["error"])
        self.check_cost(cluster, done, unreachable=1)

        done = cluster.run("top", "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("team/worker-00007-0/main", done.stdout)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("node node-00003: ", done.stderr)
        self.check_cost(cluster, done, unreachable=1)

        done = cluster.run("doctor")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ok    webhook: registered, 2 pod(s) ready\n", done.stdout)
        self.assertIn("ok    placement: 500 pods with a fraction placed, none waits", done.stdout)
        self.assertIn("ok    node node-00002: 8 GPU(s), 800 units offered, 4 container(s)\n", done.stdout)
        self.assertEqual(done.stdout.count("BAD"), 1, done.stdout)
        self.check_cost(cluster, done, unreachable=1)
        # One list of nodes, in pages, and no request for a single node.
        single = [r[0] for r in cluster.server.requests if r[0].startswith("/api/v1/nodes/")]
        self.assertEqual(single, [])

    def test_another_name_of_the_chart(self):
        cluster = self.cluster(name="gpu-share")
        for command in (["top", "--once"], ["status"], ["doctor"]):
            done = cluster.run(*command)
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)

    def test_the_api_server_is_away(self):
        cluster = self.cluster()
        cluster.server.close()
        cluster.server.http.server_close()
        done = cluster.run("status")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^sluice: .*refused.*\n$")  # kubectl's own sentence
        self.assertEqual(left_behind(self.folder), [])

    def test_a_signal_leaves_nothing_behind(self):
        cluster = self.cluster(delay=3)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            command = [cluster.program, "status"]
            with subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.DEVNULL) as process:
                end = time.monotonic() + 60
                while not cluster.server.now:
                    self.assertIsNone(process.poll(), "the program ended before it asked an agent")
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.02)
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                self.assertEqual(len(children), 1)
                process.send_signal(number)
                self.assertEqual(process.wait(20), -number)
            end = time.monotonic() + 20
            while pathlib.Path(f"/proc/{children[0]}").exists():
                self.assertLess(time.monotonic(), end, "the proxy outlived the program")
                time.sleep(0.02)
            if number != signal.SIGKILL:  # no process is left to remove the socket
                self.assertEqual(left_behind(self.folder), [])
            while cluster.server.now:
                time.sleep(0.02)


class WithoutProxy(unittest.TestCase):
    def test_kubectl_processes_run_at_once(self):
        with tempfile.TemporaryDirectory(prefix="mn-") as name:
            folder = pathlib.Path(name)
            (folder / "kubectl-sluice").symlink_to(options.program)
            (folder / "kubectl").write_text(STAND_IN)
            (folder / "kubectl").chmod(0o755)
            env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", KUBECTL_LOG=str(folder / "log"))
            env |= {"XDG_RUNTIME_DIR": str(folder)}
            for command, calls in ((["top", "--once"], 24), (["status"], 24), (["doctor"], 29)):
                done = subprocess.run(
                    [folder / "kubectl-sluice", *command], env=env, capture_output=True, text=True, timeout=120
                )
                self.assertNotIn("no agent runs", done.stderr)
                self.assertEqual(done.stderr, "")
                lines = (folder / "log").read_text().splitlines()
                (folder / "log").unlink()
                self.assertLessEqual(len(lines), calls, lines)
                self.assertEqual(sum(line.startswith("get --raw") for line in lines), 20)
                self.assertEqual(sum(line.startswith("get node ") for line in lines), 0)
                self.assertEqual(left_behind(folder), [])
            self.assertIn("ok    node n19: 1 GPU(s), 100 units offered", done.stdout)


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--nodes", type=int, default=1200)
    options = parser.parse_args()
    unittest.main(argv=sys.argv[:1], verbosity=2)


if __name__ == "__main__":
    main()
