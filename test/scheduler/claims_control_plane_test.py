#!/usr/bin/python3
"""The real kube-scheduler asks sluice-extender for pods by claim: they go where the cards pack best.

claims_control_plane_test.py SLUICE_EXTENDER

An etcd, API server and kube-scheduler of its own, with the chart's fragment; nodes, slices and pods are objects only.
It needs Kubernetes 1.36 or newer, whatever the default is: 1.37, if that is built.
"""

import os
import pathlib
import sys

os.environ.setdefault("SLUICE_CLUSTER_KUBERNETES", "1.37")
import claims_placement
from claims_placement import CLAIMS

NODES = {"free": 4, "half": 2, "full": 1}  # cards of each node
CPU = {"cpu_milli": "96000", "memory_mib": "393216", "model": "T"}


def node_of(plane, name):
    pod = plane.call("GET", f"/api/v1/namespaces/default/pods/{name}")
    return pod["spec"].get("nodeName")


def run(plane, name, milli, node=None, wait=True, cpu=1):
    """A pod with a claim, on a certain node if one is named."""
    pod = {"cpu_milli": f"{cpu}000", "memory_mib": "1024", "num_gpu": "1", "gpu_milli": str(milli), "gpu_spec": ""}
    for path, body in claims_placement.pod_objects(name, pod):
        if node and body["spec"].get("containers"):
            body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        plane.call("POST", path, body)
    if not wait:
        return None
    plane.wait(f"pod {name}", lambda: node_of(plane, name), 60)
    return node_of(plane, name)


def fill(plane):
    for name, cards in NODES.items():
        for path, body in claims_placement.node_objects(name, {**CPU, "gpu": str(cards)}):
            plane.call("POST", path, body)
    expression = {"cel": {"expression": "device.driver == 'sluice.dev'"}}
    spec = {"selectors": [expression], "extendedResourceName": "sluice.dev/gpu"}
    plane.call("POST", f"{CLAIMS}/deviceclasses", {"metadata": {"name": "sluice.dev"}, "spec": spec})


def check_placement(plane, by_extender):
    """Where pods go. Without the extender they are spread by CPU and memory: the empty node has the most."""
    first = [run(plane, "a", 400, "half", cpu=10), run(plane, "b", 700, "full", cpu=10)]
    assert first == ["half", "full"], first
    if not by_extender:
        assert run(plane, "c", 600) == "free"
        return
    if plane.extender is not None:
        plane.wait("the extender", lambda: plane.metrics()["sluice_extender_allocated_claims"] == 2, 30)
    assert run(plane, "c", 600) == "half"  # fills its first card
    assert run(plane, "d", 300) == "full"  # the same
    # Both nodes are full but for one card: a whole card fits on it, and breaks none of the empty node's.
    whole = {"name": "e"}
    container = {"name": "main", "image": "none", "resources": {"limits": {"sluice.dev/gpu": "1"}}}
    plane.call("POST", "/api/v1/namespaces/default/pods", {"metadata": whole, "spec": {"containers": [container]}})
    plane.wait("the pod with an extended resource", lambda: node_of(plane, "e"), 60)
    assert node_of(plane, "e") == "half", node_of(plane, "e")
    # Pods that come at once: one card each on the empty node's, two to a card, none of them refused or alone.
    for i in range(8):
        run(plane, f"f{i}", 500, wait=False)
    plane.wait("eight pods", lambda: all(node_of(plane, f"f{i}") for i in range(8)), 60)
    assert {node_of(plane, f"f{i}") for i in range(8)} == {"free"}
    free = lambda: plane.metrics()["sluice_extender_claim_free_gpus"]
    plane.wait("the extender's account of a full cluster", lambda: free() == 0, 30)
    # A pod that ends frees its card in the account, and the next one goes there.
    plane.call("DELETE", "/api/v1/namespaces/default/pods/d", {"gracePeriodSeconds": 0})
    claim = f"{CLAIMS}/namespaces/default/resourceclaims/d"
    plane.call("DELETE", claim)
    # No controller manager runs here that does it when the pod is gone.
    plane.call("PATCH", claim, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
    plane.wait("the freed card", lambda: abs(free() - 0.3) < 0.001, 30)
    assert run(plane, "g", 300) == "full"


def main():
    for extender in (sys.argv[1], None):
        plane = claims_placement.BarePlane(extender and str(pathlib.Path(extender).resolve()), None, len(NODES))
        plane.policy = "best-fit"  # needs no mix of requests, so that each choice is known
        good = False
        try:
            plane.up()
            fill(plane)
            claims_placement.start(plane, sum(NODES.values()))
            check_placement(plane, extender is not None)
            good = True
        finally:
            plane.down(good)
        print("with the extender" if extender else "kube-scheduler alone", ": as expected", sep="")


if __name__ == "__main__":
    main()
