#!/usr/bin/python3
"""sluice-extender between a real API server and a real kube-scheduler.

control_plane_test.py EXTENDER NODE-FLEET [PHASE...]

The schedulers' configuration has the fragment that the chart renders for a cluster's own scheduler
(scheduler.mode=cluster).

Each phase (with, without, faults) starts an etcd, an API server, schedulers and kwok of its own on free ports, as an
ordinary user, in a temporary folder: that is quicker than deleting ten thousand pods. Nodes are only objects. For each
node, node_fleet.cc runs the device plugin's own allocation code, called by kubelet's rules, and admits pods in any
order.

Asserts that with the extender no node refuses a pod, and that some do with the default scheduler alone and the same
pods. Then tests faults: two schedulers at once, 100 pods for the last cards, the extender stopped.

NODES and PODS in the environment set the scale (`make bench-cluster`: 1,000 and 10,000). Exit status 4: programs are
missing.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

from control_plane import CARDS, Plane

NODES, PODS = int(os.environ.get("NODES", "200")), int(os.environ.get("PODS", "2200"))
RESOURCE = "sluice.dev/gpu-percent"


def condition(pod):
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})


def units_of(pod):
    return int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(RESOURCE, 0))


def settled(plane, namespace):
    """All pods are bound or have a reason why not, and all bound ones were admitted or refused."""
    counts, before = plane.fleet_counts(), getattr(plane, "counts", None)
    plane.counts = counts
    if counts != before or counts["writes"]:  # still changing: do not read ten thousand pods
        return False
    pods = plane.pods(namespace)
    bound = [p for p in pods if p["spec"].get("nodeName")]
    return (
        len(pods) == PODS
        and all(p["spec"].get("nodeName") or condition(p).get("reason") == "Unschedulable" for p in pods)
        and counts["admitted"] + counts["refused"] == len(bound)
    )


def no_card_reserved_twice(pods):
    reserved = collections.Counter()
    for pod in pods:
        if not pod["spec"].get("nodeName") or not units_of(pod):
            continue
        cards = json.loads(pod["metadata"]["annotations"]["sluice.dev/placement"])["main"]
        assert len(cards) == max(1, units_of(pod) // 100), pod["metadata"]
        for card in cards:
            assert card.startswith(f"GPU-{pod['spec']['nodeName']}-"), pod["metadata"]
            reserved[card] += min(100, units_of(pod))
    over = {card: units for card, units in reserved.items() if units > 100}
    assert not over, over
    return sum(reserved.values())


def run_mix(plane, namespace, scheduler, *flags):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    plane.start_fleet(*flags)
    start = time.monotonic()
    subprocess.run(
        [
            plane.fleet,
            "pods",
            "--kubeconfig",
            plane.dir / "kubeconfig",
            "--pods",
            str(PODS),
            "--namespace",
            namespace,
            "--scheduler",
            scheduler,
        ],
        check=True,
    )
    plane.wait("the pods", lambda: settled(plane, namespace), seconds=1500, pause=max(0.3, PODS / 2000))
    return time.monotonic() - start, plane.pods(namespace), plane.fleet_counts()


def with_extender(plane):
    plane.start_scheduler("sluice-scheduler")
    seconds, pods, counts = run_mix(plane, "with", "sluice-scheduler", "--extender")
    reserved = no_card_reserved_twice(pods)
    plane.wait(
        "the extender to have seen all that it bound", lambda: plane.metrics()["sluice_extender_reserved_pods"] == 0
    )
    metrics = plane.metrics()
    print(
        f"with the extender: {counts['bound']} of {PODS} pods bound in {seconds:.0f} s, "
        f"{reserved / plane.nodes / CARDS:.1f} % of the GPUs reserved, "
        f"{metrics['sluice_extender_fragmented_gpus']:.1f} free ones fragmented; "
        f"{counts['refused']} refused by their node; "
        f"the orders of admission and binding differed {counts['nodes-out-of-order']} times; extender: "
        f"{plane.resident_mib('extender'):.0f} MiB peak, {plane.cpu_seconds('extender'):.1f} s of CPU"
    )
    waiting = [p for p in pods if not p["spec"].get("nodeName")]
    for pod in waiting[:1]:
        print("a waiting pod:", condition(pod)["message"])
    assert counts["refused"] == 0, counts
    assert counts["bound"] > PODS * 0.9, counts
    assert counts["nodes-out-of-order"] > 0, counts
    assert plane.resident_mib("extender") <= 64


def without_extender(plane):
    plane.start_scheduler("default-scheduler", extender=False)
    seconds, pods, counts = run_mix(plane, "without", "default-scheduler")
    print(
        f"the default scheduler alone: {counts['bound']} of {PODS} pods bound in {seconds:.0f} s, "
        f"{counts['refused']} refused by their node"
    )
    assert counts["refused"] > 0, counts
    failed = [p for p in pods if p["status"].get("phase") == "Failed"]
    assert len(failed) == counts["refused"] and all("sluice refuses" in p["status"]["message"] for p in failed)


def make_pod(plane, name, scheduler, units, node=None):
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {RESOURCE: str(units)}}}],
    }
    if node:
        spec["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                    ]
                }
            }
        }
    plane.call("POST", "/api/v1/namespaces/faults/pods", {"metadata": {"name": name}, "spec": spec})


def bound(plane, name):
    return plane.call("GET", f"/api/v1/namespaces/faults/pods/{name}")["spec"].get("nodeName")


def faults(plane):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "faults"}})
    plane.start_fleet("--extender")
    plane.start_scheduler("sluice-scheduler")
    plane.start_scheduler("second-scheduler")

    # Two schedulers at once, and 100 concurrent pods for the eight cards of one node.
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(
            pool.map(
                lambda i: make_pod(plane, f"last{i}", ("sluice-scheduler", "second-scheduler")[i % 2], 81, "n0003"),
                range(100),
            )
        )
    plane.wait(
        "all to be bound or to have a reason",
        lambda: all(
            p["spec"].get("nodeName") or condition(p).get("reason") == "Unschedulable" for p in plane.pods("faults")
        ),
    )
    pods = plane.pods("faults")
    no_card_reserved_twice(pods)
    assert sum("nodeName" in p["spec"] for p in pods) == CARDS
    for pod in pods:
        if "nodeName" not in pod["spec"]:
            assert "no single card has 81 units free, the largest has 19" in condition(pod)["message"], condition(pod)
    assert len({p["spec"]["schedulerName"] for p in pods if "nodeName" in p["spec"]}) >= 1
    plane.wait("admission", lambda: plane.fleet_counts()["admitted"] == CARDS)
    assert plane.fleet_counts()["refused"] == 0
    # One pod ends, and a waiting one gets its units.
    first = next(p for p in pods if "nodeName" in p["spec"])["metadata"]["name"]
    plane.call("DELETE", f"/api/v1/namespaces/faults/pods/{first}?gracePeriodSeconds=0")
    plane.wait("the next", lambda: plane.fleet_counts()["admitted"] == CARDS + 1)
    print("100 concurrent pods for the last 8 cards, two schedulers: 8 run, the others have a reason, and one follows")

    # The extender stopped: pods wait with a reason, or, with ignorable, are placed by the node's sum of units.
    plane.stop("extender")
    plane.start_scheduler("ignoring-scheduler", ignorable=True)
    make_pod(plane, "waiting", "sluice-scheduler", 30)
    make_pod(plane, "ignoring", "ignoring-scheduler", 30)
    plane.wait("the pod that does not need the extender", lambda: bound(plane, "ignoring"))
    plane.wait(
        "a reason",
        lambda: (
            "connection refused"
            in condition(plane.call("GET", "/api/v1/namespaces/faults/pods/waiting")).get("message", "")
        ),
    )
    assert not bound(plane, "waiting")
    assert "sluice.dev/placement" not in plane.call("GET", "/api/v1/namespaces/faults/pods/ignoring")["metadata"].get(
        "annotations", {}
    )
    plane.start_extender()
    plane.wait("the pod that waited", lambda: bound(plane, "waiting"))
    print(
        "extender stopped: one pod waited with a reason, the one with ignorable was placed by sums; "
        "extender back: the first is placed"
    )


PHASES = {"with": (with_extender, NODES), "without": (without_extender, NODES), "faults": (faults, 20)}


def main():
    for phase in sys.argv[3:] or PHASES:
        run, nodes = PHASES[phase]
        plane = Plane(*(pathlib.Path(program).resolve() for program in sys.argv[1:3]), nodes)
        good = False
        try:
            plane.up()
            plane.make_nodes()
            run(plane)
            good = True
        finally:
            plane.down(good)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
