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


ATTRIBUTES = "device.attributes['sluice.dev']"
SIZES = {"small": 1000, "large": 4000}  # MiB of each of a node's two cards


def half(size):
    """Half a card of this size, as the webhook asks for it."""
    selector = f"'memoryMiB' in {ATTRIBUTES} && {ATTRIBUTES}.memoryMiB in [{size}]"
    return {
        "name": f"size-{size}",
        "deviceClassName": "sluice.dev",
        "selectors": [{"cel": {"expression": selector}}],
        "capacity": {"requests": {"memory": f"{size // 2}Mi"}},
    }


def allocated(plane, name):
    claim = plane.call("GET", f"{CLAIMS}/namespaces/default/resourceclaims/{name}")
    result = claim["status"]["allocation"]["devices"]["results"][0]
    return result["request"], result["consumedCapacity"]["memory"]


def check_fractions(plane, by_extender):
    """A fraction is one alternative for each size of card; cards without the attribute end no search."""
    for name, size in SIZES.items():
        for path, body in claims_placement.node_objects(name, {**CPU, "gpu": "2"}):
            for device in body["spec"].get("devices", []) if "spec" in body else []:
                device["attributes"] = {"memoryMiB": {"int": size}}
                memory = device["capacity"]["memory"]
                memory["value"] = memory["requestPolicy"]["default"] = f"{size}Mi"
            plane.call("POST", path, body)
    if by_extender:
        cards = sum(NODES.values()) + 2 * len(SIZES)
        plane.wait("the extender to know them", lambda: plane.metrics()["sluice_extender_claim_cards"] == cards, 30)
    pods = [f"half-{i}" for i in range(8)]  # two to a card
    for name in pods:
        request = {"name": "gpu", "firstAvailable": [half(size) for size in SIZES.values()]}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        plane.call("POST", f"{CLAIMS}/namespaces/default/resourceclaims", claim)
        resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "claims": [{"name": "gpu"}]}
        spec = {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        plane.call("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})
    plane.wait("half cards", lambda: all(node_of(plane, name) for name in pods), 60)
    got = sorted((node_of(plane, name), *allocated(plane, name)) for name in pods)
    assert got == [("large", "gpu/size-4000", "2000Mi")] * 4 + [("small", "gpu/size-1000", "500Mi")] * 4, got


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
            check_fractions(plane, extender is not None)
            good = True
        finally:
            plane.down(good)
        print("with the extender" if extender else "kube-scheduler alone", ": as expected", sep="")


if __name__ == "__main__":
    main()
