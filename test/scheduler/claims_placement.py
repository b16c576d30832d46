#!/usr/bin/python3
"""How full kube-scheduler makes a cluster with ResourceClaims (DRA), beside the model of `sluice simulate-cluster`.

claims_placement.py SIMULATOR NODES.csv PODS.csv [--every N] [--extender PROGRAM [--other-pods]]
                    [--seed N]

A real etcd, API server and kube-scheduler; nodes, slices and pods are objects only. It takes each N-th node and pod of
the files (10). With --extender, sluice-extender scores the nodes, by the chart's configuration. By hand; needs
SLUICE_CLUSTER_KUBERNETES=1.37. The files are as for `sluice simulate-cluster`.
"""

import argparse
import csv
import json
import pathlib
import random
import subprocess
import tempfile

from control_plane import Plane

CARD = 1000  # Mi of memory of each card: a thousandth of a card is 1Mi
CLAIMS = "/apis/resource.k8s.io/v1"


class BarePlane(Plane):
    """The extender only where one is given, for claims."""

    policy, other_pods = "look-ahead", False

    def start_extender(self):
        if self.extender is None:
            return
        settings = {"claims": True, "otherPods": self.other_pods, "policy": self.policy}
        settings |= {"listen": f"127.0.0.1:{self.ext}", "kubeconfig": "kubeconfig"}
        (self.dir / "extender.yaml").write_text(json.dumps(settings))
        self.start("extender", self.extender, "--config", "extender.yaml")


def thinned(path, every, out):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))[::every]
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def units(pod):
    count = int(pod["num_gpu"])
    return count, (int(pod["gpu_milli"]) if count == 1 else CARD) if count else 0


def arrivals(nodes, pods, seed):
    """The protocol of simulation.h until all of the cluster is requested, and a tenth more."""
    chance, wanted = random.Random(seed), 1.1 * CARD * sum(int(n["gpu"]) for n in nodes)
    out, total = list(pods), 0
    total = sum(c * u for c, u in map(units, out))
    while total < wanted:
        out.append(chance.choice(pods))
        total += units(out[-1])[0] * units(out[-1])[1]
    chance.shuffle(out)
    return out


def node_objects(name, node):
    amounts = {"cpu": f"{node['cpu_milli']}m", "memory": f"{node['memory_mib']}Mi", "pods": "500"}
    condition = {"type": "Ready", "status": "True", "reason": "Simulated"}
    yield (
        "/api/v1/nodes",
        {
            "metadata": {"name": name, "labels": {"model": node["model"], "kubernetes.io/hostname": name}},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [condition]},
        },
    )
    policy = {"default": f"{CARD}Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    card = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": f"{CARD}Mi", "requestPolicy": policy}}}
    if int(node["gpu"]):
        devices = [{"name": f"gpu-{i}", **card} for i in range(int(node["gpu"]))]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "sluice.dev", "nodeName": name, "pool": pool, "devices": devices}
        yield f"{CLAIMS}/resourceslices", {"metadata": {"name": name}, "spec": spec}


def pod_objects(name, pod):
    count, milli = units(pod)
    requests = {"cpu": f"{pod['cpu_milli']}m", "memory": f"{pod['memory_mib']}Mi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if pod.get("gpu_spec"):
        term = {"matchExpressions": [{"key": "model", "operator": "In", "values": pod["gpu_spec"].split("|")}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    if count:
        exactly = {
            "deviceClassName": "sluice.dev",
            "count": count,
            "capacity": {"requests": {"memory": f"{milli}Mi"}},
        }
        devices = {"requests": [{"name": "gpu", "exactly": exactly}]}
        yield f"{CLAIMS}/namespaces/default/resourceclaims", {"metadata": {"name": name}, "spec": {"devices": devices}}
        container["resources"]["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    yield "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec}


def decided(pods):
    """Pods that are bound, and pods that are known to fit nowhere."""
    bound = {p["metadata"]["name"] for p in pods if p["spec"].get("nodeName")}
    reasons = lambda p: [c.get("reason") for c in p.get("status", {}).get("conditions", [])]
    return bound, {p["metadata"]["name"] for p in pods if "Unschedulable" in reasons(p)} - bound


def start(plane, cards):
    """The scheduler, once the extender knows all cards."""
    if plane.extender is not None:
        plane.wait("the extender", lambda: plane.metrics()["sluice_extender_claim_cards"] == cards)
    plane.start_scheduler("default-scheduler", extender=plane.extender is not None, claims=True)


def place(plane, nodes, order):
    """Names of the pods that were placed. Not more than twenty wait at a time, so that they arrive in order."""
    for i, node in enumerate(nodes):
        for path, body in node_objects(f"n{i:04}", node):
            plane.call("POST", path, body)
    expression = {"cel": {"expression": "device.driver == 'sluice.dev'"}}
    device_class = {"metadata": {"name": "sluice.dev"}, "spec": {"selectors": [expression]}}
    plane.call("POST", f"{CLAIMS}/deviceclasses", device_class)
    start(plane, sum(int(n["gpu"]) for n in nodes))
    for i, pod in enumerate(order):
        for path, body in pod_objects(f"p{i:05}", pod):
            plane.call("POST", path, body)
        if (i + 1) % 20 == 0 or i + 1 == len(order):
            judged = lambda made=i + 1: sum(map(len, decided(plane.pods("default")))) == made
            plane.wait(f"{i + 1} pods", judged, 300, 0.1)
    return decided(plane.pods("default"))[0]


def check_claims(plane, nodes, placed, order):
    """No card holds more than it has, and each placed pod holds its requested devices."""
    held = {}
    for claim in plane.call("GET", f"{CLAIMS}/resourceclaims")["items"]:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        name = claim["metadata"]["name"]
        count, milli = units(order[int(name[1:])])
        assert len(results) == (count if name in placed else 0), claim
        for r in results:
            assert r["consumedCapacity"]["memory"] == f"{milli}Mi", r
            held[r["pool"], r["device"]] = held.get((r["pool"], r["device"]), 0) + milli
    assert max(held.values()) <= CARD, held
    assert len(held) <= sum(int(n["gpu"]) for n in nodes)


def check_extender(plane, nodes):
    """Its account of the cards is the API server's."""
    held = 0
    for claim in plane.call("GET", f"{CLAIMS}/resourceclaims")["items"]:
        for r in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
            held += int(r["consumedCapacity"]["memory"].removesuffix("Mi")) / CARD
    cards = sum(int(n["gpu"]) for n in nodes)
    free = lambda: plane.metrics()["sluice_extender_claim_free_gpus"]
    # Parts of a card are rounded down to hundredths. Its expectations of failed pods are dropped at its next call.
    plane.wait("the extender's account", lambda: abs(free() - (cards - held)) < cards / 100 + 3, 30)
    calls = plane.metrics()['sluice_extender_calls_total{call="prioritize-any"}']
    print(f"the extender: {calls:.0f} calls, {plane.resident_mib('extender'):.0f} MiB at most")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("simulator")
    parser.add_argument("nodes")
    parser.add_argument("pods")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--extender")
    parser.add_argument("--other-pods", action="store_true", help="the extender scores nodes for pods without GPUs")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-claims-"))
    nodes = thinned(options.nodes, options.every, folder / "nodes.csv")
    pods = thinned(options.pods, options.every, folder / "pods.csv")
    order = arrivals(nodes, pods, options.seed)
    plane = BarePlane(options.extender, None, len(nodes))
    plane.other_pods = options.other_pods
    try:
        plane.up()
        placed = place(plane, nodes, order)
        check_claims(plane, nodes, placed, order)
        if plane.extender is not None:
            check_extender(plane, nodes)
    finally:
        for name in list(plane.running)[::-1]:
            plane.stop(name)
    capacity = CARD * sum(int(n["gpu"]) for n in nodes)
    arrived = allocated = 0
    for i, pod in enumerate(order):
        count, milli = units(pod)
        arrived += count * milli
        allocated += count * milli if f"p{i:05}" in placed else 0
        if arrived >= capacity:
            break
    print(f"{len(nodes)} nodes, {capacity // CARD} GPUs, {len(order)} pods, {len(placed)} of them placed")
    how = "with claims and the extender" if options.extender else "with claims"
    print(f"kube-scheduler {how}: {100 * allocated / capacity:.2f} % allocated when 100 % has arrived")
    for policy in ("claims-spread-fixed", "claims-look-ahead-fixed", "look-ahead"):
        command = [options.simulator, "simulate-cluster", folder / "nodes.csv", folder / "pods.csv", "--policy", policy]
        output = subprocess.run([*command, "--seeds", "10"], check=True, capture_output=True, text=True).stdout
        row = next(line for line in output.splitlines() if line.startswith(policy))
        print(f"the simulator's {policy}, mean of ten orders: {row.split()[1]} %")
    print(json.dumps({"seed": options.seed, "every": options.every}))


if __name__ == "__main__":
    main()
