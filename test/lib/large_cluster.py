"""Nodes of 20 KB and pods of 3 KB, as clusters have them that run feature discovery, operators and service meshes."""

import json

from fake_apiserver import Collection

GIB = 1 << 30


def node_template(cards):
    gpus = [
        {
            "uuid": f"GPU-@N@-{card:04d}",
            "model": "NVIDIA H100 80GB HBM3",
            "memory": 80 * GIB,
            "numa": card // 4,
            "free": 50,
            "state": "healthy",
            "pods": {},
        }
        for card in range(cards)
    ]
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{i}": "true" for i in range(60)}
    labels |= {f"nvidia.com/gpu.property-{i}": f"value-of-some-length-{i}" for i in range(25)}
    labels |= {"kubernetes.io/hostname": "node-@N@", "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "z1"}
    annotations = {
        "sluice.dev/gpus": json.dumps(gpus, separators=(",", ":")),
        "nfd.node.kubernetes.io/feature-labels": ",".join(labels),
        "csi.volume.kubernetes.io/nodeid": "x" * 200,
    }
    fields = {"f:metadata": {"f:labels": {"f:" + key: {} for key in labels}}}
    metadata = {
        "name": "node-@N@",
        "uid": "00000000-0000-4000-8000-0000000@N@",
        "resourceVersion": "900",
        "labels": labels,
        "annotations": annotations if cards else {},
        "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}],
    }
    units = {"sluice.dev/gpu-percent": str(100 * cards)} if cards else {}
    images = [
        {"names": [f"registry.example/team/image-{i}@sha256:" + "a" * 64, f"registry.example/team/image-{i}:v1"]}
        for i in range(40)
    ]
    status = {
        "allocatable": {"cpu": "128", "memory": "2097152Mi", "pods": "110", **units},
        "capacity": {"cpu": "128", "memory": "2097152Mi", "pods": "110", **units},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": images,
    }
    return metadata, {"podCIDR": "10.0.0.0/24"}, status


def make_nodes(count, cards=8):
    metadata, spec, status = node_template(cards)
    whole = json.dumps({"metadata": metadata, "spec": spec, "status": status}, separators=(",", ":"))
    part = json.dumps({"kind": "PartialObjectMetadata", "metadata": metadata}, separators=(",", ":"))
    return Collection("Node", count, lambda index, partial: (part if partial else whole).replace("@N@", f"{index:05d}"))


def pod_template(units=50):
    resources = {"limits": {"sluice.dev/gpu-percent": str(units)}, "requests": {"cpu": "1", "memory": "1Gi"}}
    containers = [
        {
            "name": "main",
            "image": "registry.example/team/worker:v1",
            "env": [{"name": f"VARIABLE_{i}", "value": "v" * 30} for i in range(20)],
            "resources": resources,
        },
        {"name": "proxy", "image": "registry.example/mesh/proxy:v1", "resources": {"requests": {"cpu": "100m"}}},
    ]
    placement = json.dumps({"main": ["GPU-@N@-@C@"]}, separators=(",", ":"))
    metadata = {
        "name": "worker-@I@",
        "namespace": "team",
        "uid": "10000000-0000-4000-8000-0000000@I@",
        "resourceVersion": "900",
        "creationTimestamp": "2026-11-25T08:00:00Z",
        "labels": {"app": "worker"},
        "annotations": {"sluice.dev/gpu-fraction": "0.5", "sluice.dev/placement": placement, "note": "x" * 200},
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {f"f:field-{i}": {} for i in range(50)}}}],
    }
    status = {
        "phase": "Running",
        "startTime": "2026-11-25T08:00:01Z",
        "containerStatuses": [{"name": "main", "ready": True, "imageID": "y" * 80}],
    }
    return {"metadata": metadata, "spec": {"nodeName": "node-@N@", "containers": containers}, "status": status}


def make_pods(count, nodes):
    """Bound to the nodes in turn, on the nodes' cards in turn."""
    whole = json.dumps(pod_template(), separators=(",", ":"))

    def make(index, partial):
        assert not partial, "pods are read whole: requests are in their spec"
        card = f"{index // nodes % 8:04d}"
        return whole.replace("@I@", f"{index:05d}").replace("@N@", f"{index % nodes:05d}").replace("@C@", card)

    return Collection("Pod", count, make)


def make_slices(nodes, cards=8):
    """What sluice's DRA driver publishes on each node."""
    size = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}}
    time = {"value": "100", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}
    devices = [
        {
            "name": f"gpu-00000000-@N@-{card:04d}",
            "allowMultipleAllocations": True,
            "attributes": {
                "uuid": {"string": f"GPU-00000000-@N@-{card:04d}"},
                "model": {"string": "NVIDIA H100 80GB HBM3"},
                "architecture": {"string": "Hopper"},
                "driverVersion": {"version": "580.95.5"},
                "numaNode": {"int": card // 4},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{card:02d}"},
            },
            "capacity": {"memory": size, "compute": time},
        }
        for card in range(cards)
    ]
    pool = {"name": "node-@N@", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "sluice.dev", "nodeName": "node-@N@", "pool": pool, "devices": devices}
    fields = {"f:spec": {"f:devices": {}, "f:driver": {}, "f:nodeName": {}, "f:pool": {}}}
    metadata = {"name": "node-@N@-sluice.dev", "resourceVersion": "900", "managedFields": [{"fieldsV1": fields}]}
    whole = json.dumps({"metadata": metadata, "spec": spec}, separators=(",", ":"))
    return Collection("ResourceSlice", nodes, lambda index, partial: whole.replace("@N@", f"{index:05d}"))


def claim(name, pod, devices=None, memory="40Gi"):
    """A template's claim; `devices`: (node, device) that it holds."""
    exactly = {"deviceClassName": "sluice.dev", "capacity": {"requests": {"memory": memory, "compute": "25"}}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": True}
    fields = {"f:status": {f"f:field-{i}": {} for i in range(30)}}
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "900", "ownerReferences": [owner]}
    metadata |= {"finalizers": ["resource.kubernetes.io/delete-protection"], "managedFields": [{"fieldsV1": fields}]}
    out = {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    if devices:
        results = [
            {
                "driver": "sluice.dev",
                "pool": node,
                "device": device,
                "request": "gpu",
                "consumedCapacity": {"memory": memory, "compute": "25"},
            }
            for node, device in devices
        ]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [devices[0][0]]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        out["status"] = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}]}
    return out


def make_claims(count, nodes):
    """One for each pod of make_pods, on the same node and card."""
    held = [("node-@N@", "gpu-00000000-@N@-@C@")]
    whole = json.dumps(claim("worker-@I@-gpu-abcde", "10000000-0000-4000-8000-0000000@I@", held), separators=(",", ":"))

    def make(index, partial):
        card = f"{index // nodes % 8:04d}"
        return whole.replace("@I@", f"{index:05d}").replace("@N@", f"{index % nodes:05d}").replace("@C@", card)

    return Collection("ResourceClaim", count, make)


def make_classes():
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'sluice.dev'"}}]}
    text = json.dumps({"metadata": {"name": "sluice.dev"}, "spec": spec})
    return Collection("DeviceClass", 1, lambda index, partial: text)


def make_sluice(nodes, workers, name="sluice"):
    """All pods of a cluster with the chart in it: an agent a node, two webhooks, and the workers."""
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "node"}
    ports = [{"name": "metrics", "containerPort": 9402}]
    environment = [{"name": f"VARIABLE_{i}", "value": "v" * 30} for i in range(20)]
    containers = [{"name": "agent", "ports": ports, "env": environment}, {"name": "device-plugin", "env": environment}]
    agent = {
        "metadata": {"name": "agent-@N@", "namespace": "sluice-system", "uid": "a-@N@", "labels": labels},
        "spec": {"nodeName": "node-@N@", "containers": containers},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    webhook = json.loads(json.dumps(agent).replace("agent-@N@", "webhook-@N@").replace('"node"', '"webhook"'))
    agent, webhook = (json.dumps(pod, separators=(",", ":")) for pod in (agent, webhook))
    worker = make_pods(workers, nodes)

    def make(index, partial):
        if index >= nodes + 2:
            return worker.make(index - nodes - 2, partial)
        return (agent if index < nodes else webhook).replace("@N@", f"{index % nodes:05d}")

    return Collection("Pod", nodes + 2 + workers, make)


def make_registration(name="sluice"):
    hook = {"name": "mutate.sluice.dev", "clientConfig": {"caBundle": "eA=="}}
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": name}}
    others = [{"metadata": {"name": "other"}, "webhooks": [{"name": "other.example"}]}, {"metadata": {"name": "empty"}}]
    texts = [json.dumps(o) for o in (*others, {"metadata": metadata, "webhooks": [hook]})]
    return Collection("MutatingWebhookConfiguration", len(texts), lambda index, partial: texts[index])


def status_page(version, cards=8, containers=4):
    """An agent's status.json."""
    counters = {f"counter{i}": str(1 << 30) for i in range(12)}
    gpus = [
        {"uuid": f"GPU-@N@-{card:04d}", "model": "NVIDIA H100 80GB HBM3", "memoryBytes": str(80 * GIB), **counters}
        for card in range(cards)
    ]
    allocations = [
        {"id": f"a{i}", "pod": f"worker-@N@-{i}", "namespace": "team", "container": "main", "hookState": "hooked"}
        for i in range(containers)
    ]
    page = {"agentVersion": version, "unixMs": "1", "gpus": gpus, "allocations": allocations}
    return json.dumps(page, separators=(",", ":"))
