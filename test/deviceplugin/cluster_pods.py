#!/usr/bin/env python3
"""cluster_pods.py plain|random COUNT STATE-FOLDER NAMESPACE NODE IMAGE ALLOC-DIR: pods on the local cluster.

It creates and deletes them ten at a time. plain: each pod requests 5 units, ends by itself and is deleted. random:
sizes, container restarts and deletion times are random (SEED from the environment), while cluster_test kills plugin
and kubelet. Each pod must be served in full or refused with a reason. At all times no two pods hold one unit, and each
container's units are on one card.
"""

import base64
import collections
import http.client
import json
import os
import random
import ssl
import sys
import time

AT_ONCE = 10
RESOURCE = "sluice.dev/gpu-percent"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
# Kubelet's messages while it has no plugin or too few units, and the plugin's.
REASONS = (
    "sluice refuses: ",
    "requested number of devices unavailable",
    "no healthy devices present",
    "cannot allocate unregistered device",
    "Node didn't have enough resource",
    "failed to get device plugin options",
    # gRPC's: the plugin was killed during kubelet's call, or its successor registered meanwhile.
    "code = Unavailable desc = ",
    "code = Canceled desc = ",
    # Kubelet was stopped while it started the container.
    "context canceled",
    "ContainerStatusUnknown",
)


class Api:
    """The API server, over one connection that is reopened when it breaks."""

    def __init__(self, state):
        pki = f"{state}/pki"
        self.context = ssl.create_default_context(cafile=f"{pki}/ca.crt")
        self.context.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")
        self.connection = None

    def call(self, method, path, body=None):
        for attempt in range(30):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPSConnection("10.201.0.2", 6443, context=self.context, timeout=20)
                self.connection.request(
                    method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"}
                )
                answer = self.connection.getresponse()
                text = answer.read()
                return answer.status, json.loads(text)
            except (OSError, http.client.HTTPException, ValueError):
                self.connection = None
                time.sleep(0.2 * (attempt + 1))
        raise SystemExit(f"FAILED: the API server does not answer to {method} {path}")


class Run:
    def __init__(self, mode, count, state, namespace, node, image, alloc):
        self.random = random.Random(int(os.environ.get("SEED", "1"))) if mode == "random" else None
        self.count, self.node, self.image, self.alloc = count, node, image, alloc
        self.api = Api(state)
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.made = 0
        self.delete_at = {}  # time by name, for pods that do not end by themselves
        self.gone = set()  # names whose deletion was requested
        self.result = collections.Counter()
        self.problems = []

    def create(self):
        self.made += 1
        units, command, policy = 5, "exit 0", "Never"
        if self.random:
            units = self.random.choice([1, 3, 5, 10, 20, 30, 40, 50])
            # Ends at once, after a while, or restarts until it is deleted.
            kind = self.random.randrange(3)
            command = ["exit 0", f"sleep {self.random.uniform(0.2, 2):.1f}", "sleep 1"][kind]
            policy = "Always" if kind == 2 else "Never"
            if kind == 2:
                self.delete_at[f"p{self.made}"] = time.time() + self.random.uniform(1, 6)
        container = {
            "name": "main",
            "image": self.image,
            "imagePullPolicy": "Never",
            "command": ["bash", "-c", command],
            # This test has no real library, and a pod's own variables take precedence.
            "env": [{"name": "LD_PRELOAD", "value": ""}],
            "resources": {"limits": {RESOURCE: str(units)}},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{self.made}"},
            # Bypasses the scheduler, so that kubelet decides at once, even without a plugin.
            "spec": {
                "nodeName": self.node,
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }
        status, answer = self.api.call("POST", self.pods, pod)
        if status not in (201, 409):
            self.problems.append(f"p{self.made} was not accepted: {answer.get('message')}")

    def delete(self, name, why):
        if name in self.gone:
            return
        self.gone.add(name)
        self.result[why] += 1
        self.api.call("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})

    def handle(self, pod):
        name, status = pod["metadata"]["name"], pod.get("status", {})
        phase = status.get("phase")
        if phase == "Succeeded":
            self.delete(name, "served")
        elif phase == "Failed":
            # The pod failed, or one of its containers could not be started.
            states = [state for c in status.get("containerStatuses", []) for state in c["state"].values()]
            message = "; ".join(
                [status.get("reason", ""), status.get("message", "")]
                + [f"{state.get('reason', '')}: {state.get('message', '')}" for state in states]
            )
            known = any(reason in message for reason in REASONS)
            if not known or not self.random:
                self.problems.append(f"{name} failed: {message[:500]}")
            self.delete(name, "refused with a reason" if known else "failed")
        elif name in self.delete_at and time.time() > self.delete_at[name]:
            states = status.get("containerStatuses", [])
            self.result["container restarts"] += sum(s["restartCount"] for s in states)
            self.delete(name, "deleted")

    def check_units(self, pods):
        """Checks the units of running pods in kubelet's checkpoint.

        Kubelet keeps an ended pod's entry until it needs the units.
        """
        living = {
            p["metadata"]["uid"]: p["metadata"]["name"]
            for p in pods
            if p["metadata"]["name"] not in self.gone and p.get("status", {}).get("phase") == "Running"
        }
        try:
            with open(CHECKPOINT) as file:
                entries = json.load(file)["Data"]["PodDeviceEntries"] or []
        except (OSError, ValueError):
            return
        owner = {}
        for entry in entries:
            if entry["ResourceName"] != RESOURCE or entry["PodUID"] not in living:
                continue
            name = living[entry["PodUID"]]
            ids = [i for group in entry["DeviceIDs"].values() for i in group]
            if len({i.split("::")[0] for i in ids}) != 1:
                self.problems.append(f"{name} has units of several cards: {ids}")
            for i in ids:
                if owner.setdefault(i, name) != name:
                    self.problems.append(f"{i} is held by {owner[i]} and by {name}")
            response = base64.b64decode(entry["AllocResp"])
            if self.alloc.encode() not in response:
                self.problems.append(f"{name} has no directory")
        self.result["checks"] += 1

    def go(self):
        began, last, moved = time.time(), None, time.time()
        while True:
            _, answer = self.api.call("GET", self.pods)
            pods = answer.get("items", [])
            self.check_units(pods)
            for pod in pods:
                self.handle(pod)
            alive = len(pods)
            if not pods and self.made == self.count:
                break
            for _ in range(min(AT_ONCE - alive, self.count - self.made)):
                self.create()
            state = (self.made, alive, sum(self.result.values()) - self.result["checks"])
            if state != last:
                last, moved = state, time.time()
            if time.time() - moved > 120:
                stuck = [(p["metadata"]["name"], json.dumps(p.get("status"))[:600]) for p in pods]
                raise SystemExit(f"FAILED: no progress: {stuck}")
            time.sleep(0.1)
        seconds = time.time() - began
        print(f"{self.count} pods in {seconds:.0f} s ({self.count / seconds:.1f} a second): {dict(self.result)}")
        for problem in self.problems[:20]:
            print(f"FAILED: {problem}")
        return 1 if self.problems else 0


if __name__ == "__main__":
    sys.exit(Run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]).go())
