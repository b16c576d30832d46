"""Shared by the tests against a real API server: the webhook's process, checks, and the objects that the tests send."""

import contextlib
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import ClassVar

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import apiserver as api

RESOURCE = "sluice.dev/gpu-percent"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/"
failures = []
WITH_SHARE = {
    "metadata": {"annotations": {"sluice.dev/gpu-fraction": "0.5"}},
    "spec": {"containers": [{"name": "a", "image": "x"}]},
}
PLAIN = {"metadata": {}, "spec": {"containers": [{"name": "a", "image": "x"}]}}


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


class Webhook:
    running: ClassVar[list] = []  # the test ends these at its end

    def __init__(self, program, folder, kubeconfig, config):
        self.program, self.folder, self.kubeconfig = program, folder, kubeconfig
        self.config_file = folder + "/webhook.yaml"
        self.port = api.free_port()
        self.write(config)

    def write(self, config):
        with open(self.config_file + ".new", "w") as f:
            f.write(config)
        os.rename(self.config_file + ".new", self.config_file)
        self.config = config

    def start(self, *extra):
        port_file = self.folder + "/ports"
        if os.path.exists(port_file):
            os.remove(port_file)
        self.log = open(self.folder + "/webhook.log", "a")
        self.process = subprocess.Popen(
            api.bound(
                self.program,
                "--config",
                self.config_file,
                "--listen",
                f"127.0.0.1:{self.port}",
                "--metrics-listen",
                "127.0.0.1:0",
                "--kubeconfig",
                self.kubeconfig,
                "--port-file",
                port_file,
                "--drain",
                "0",
                *extra,
            ),
            stderr=self.log,
        )
        Webhook.running.append(self)
        wait(lambda: os.path.exists(port_file), "the webhook listens")
        self.metrics_port = int(open(port_file).read().split()[1])

    def metrics(self, path="/metrics"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as r:
                return r.read().decode()
        except urllib.error.HTTPError as e:
            return e.read().decode()

    def metric(self, name):
        found = re.search("^" + re.escape(name) + r" (\S+)$", self.metrics(), re.M)
        return float(found.group(1)) if found else 0.0

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def wait(condition, what, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.1)
    check(False, "timed out waiting for: " + what)
    return False


def eventually(find_problem, end):
    """Repeats until there is no problem, or until `end`.

    Only a pod's outcome shows that the API server's informers have noticed a change.
    """
    while (problem := find_problem()) and time.time() < end:
        time.sleep(0.2)
    check(not problem, problem)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def load_manifests(program, *args):
    text = subprocess.run(
        [program, "--print-policy", "manifests", *args], check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    return text


def yaml_documents(golden, text, folder):
    """Reads YAML with the webhook's own reader, through the golden program: the test needs no YAML library."""
    os.makedirs(folder, exist_ok=True)
    out = []
    for i, part in enumerate(text.split("\n---\n")):
        with open(f"{folder}/{i:02}.yaml", "w") as f:
            f.write(part)
    lines = subprocess.run([golden, folder, "--expect"], check=True, stdout=subprocess.PIPE).stdout.decode()
    for line in lines.splitlines():
        out += json.loads(line)["documents"]
    shutil.rmtree(folder)
    return out


def put(server, manifests):
    plural = {
        "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
        "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    for m in manifests:
        path = ADMISSION + plural[m["kind"]]
        status, answer, _ = server.call("GET", path + "/" + m["metadata"]["name"])
        if status == 200:
            m = dict(m, metadata=dict(m["metadata"], resourceVersion=answer["metadata"]["resourceVersion"]))
            status, answer, _ = server.call("PUT", path + "/" + m["metadata"]["name"], m)
        else:
            status, answer, _ = server.call("POST", path, m)
        check(status in (200, 201), f"{m['kind']} {m['metadata']['name']}: {status} {answer if status > 201 else ''}")


def send(server, pod, namespace, connection=None):
    body = copy.deepcopy(pod)
    body.setdefault("metadata", {})["namespace"] = namespace
    if "name" not in body["metadata"] and "generateName" not in body["metadata"]:
        body["metadata"]["generateName"] = "x-"
    return server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body, connection=connection)


def config_of(case):
    found = re.search(r"^# config: (.*)$", case["config"], re.M)
    return found.group(1) if found else "{}"


def outage(server, cases, aliases, refusal="has not handled it", without_policy=False):
    """The webhook is down. The policy alone must agree with ConcernsSluice and IsHandled.

    Without a policy (older API servers), failurePolicy Fail of the webhook denies all pods that concern sluice.
    """
    count, end = 0, time.time() + 15
    for c in cases:
        if len(c["documents"]) != 1 or c["documents"][0].get("kind") != "Pod" or c["aliases"] != aliases:
            continue
        pods = [(c["name"], c["documents"][0], c["concerns"], c["handled"])]
        if c.get("result") and c["result"] != c["documents"][0] and not c["denied"]:
            pods.append((c["name"] + " (handled)", c["result"], None, None))
        for name, pod, concerns, handled in pods:
            if c["name"] in ("annotation-not-a-string", "env-not-a-list", "mirror"):
                continue

            def problem(name=name, pod=pod, concerns=concerns, handled=handled):
                status, answer, _ = send(server, pod, "team-a")
                message = answer.get("message", "") if isinstance(answer, dict) else str(answer)
                if concerns is None:
                    good, what = without_policy or refusal not in message, "denied, although it carries the marker"
                elif concerns and (without_policy or not handled):
                    # An invalid pod is denied with status 422.
                    good, what = (status != 201 and refusal in message) or status == 422, "allowed without the webhook"
                else:
                    good, what = (
                        status in (201, 422) and refusal not in message,
                        "denied, although it does not concern sluice",
                    )
                return None if good else f"{name}: {what}: {status} {message[:200]}"

            eventually(problem, end)
            count += 1
    print(f"{count} pods while the webhook was down (aliases: {aliases}, policy: {not without_policy})")


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def resource_slice(node, sizes):
    """As the DRA driver publishes cards of so many MiB."""
    devices = [{"name": f"gpu-{i}", "attributes": {"memoryMiB": {"int": size}}} for i, size in enumerate(sizes)]
    return {
        "metadata": {"name": node + "-sluice.dev"},
        "spec": {
            "driver": "sluice.dev",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


@contextlib.contextmanager
def known_nodes(server, webhook, nodes):
    """Nodes whose GPUs the webhook knows meanwhile."""
    for n in nodes:
        status, _, _ = server.call(
            "POST",
            "/api/v1/nodes",
            {"metadata": {"name": n["name"], "labels": n["labels"], "annotations": {"sluice.dev/gpus": n["gpus"]}}},
        )
        check(status == 201, "node " + n["name"])
        if n["offered"]:
            status, answer, _ = server.call("POST", SLICES, resource_slice(n["name"], n["offered"]))
            check(status == 201, f"slice of {n['name']}: {answer}")
    wait(lambda: webhook.metric("sluice_webhook_gpu_nodes") == len(nodes), f"{len(nodes)} nodes in the cache")
    yield
    for n in nodes:
        server.call("DELETE", "/api/v1/nodes/" + n["name"])
        server.call("DELETE", f"{SLICES}/{n['name']}-sluice.dev")
    wait(lambda: webhook.metric("sluice_webhook_gpu_nodes") == 0, "no nodes in the cache")
