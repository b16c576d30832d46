"""Kueue, JobSet and LeaderWorkerSet on the local cluster, as their own manifests install them.

Programs and manifests come from the modules that tools/queues and tools/jobsets pin; an image holds its program alone.
"""

import json
import os
import pathlib
import tempfile

import product as p
import yaml

TOOLS = p.HERE / "tools" / "build"
MODULES = {"kueue": "sigs.k8s.io/kueue", "jobset": "sigs.k8s.io/jobset", "lws": "sigs.k8s.io/lws"}
UNITS = "sluice.dev/gpu-percent"


def programs():
    """The folder of the built controllers; the first build on a machine takes minutes."""
    return pathlib.Path(p.run(TOOLS, "--queues", timeout=5400).stdout.strip())


def image(name):
    out = pathlib.Path(os.environ["CLUSTER_STATE"]) / "images" / f"{name}.tar"
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        p.run("cp", programs() / name, f"{root}/manager")
        p.run(p.HERE / "oci_archive", f"sluice.test/{name}:1", root, out, "/manager")
    p.run(p.CLUSTER, "load", out)


def manifests(name):
    """config/default of the module, for a node without a registry and with two cores."""
    folder = p.run(TOOLS, "--queues", "--module", MODULES[name]).stdout.strip()
    objects = [o for o in yaml.safe_load_all(p.kubectl("kustomize", f"{folder}/config/default")) if o]
    for o in objects:
        if o["kind"] != "Deployment":
            continue
        o["spec"]["replicas"] = 1
        pod = o["spec"]["template"]["spec"]
        pod.setdefault("securityContext", {})["runAsUser"] = 65532
        for c in pod["containers"]:
            c.update(image=f"sluice.test/{name}:1", imagePullPolicy="Never", resources={})
    return objects


def install(name):
    image(name)
    objects = manifests(name)
    text = yaml.safe_dump_all(objects)
    # Server-side: Kueue's definitions are larger than an annotation may be.
    p.run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-", text=text)
    space = next(o["metadata"]["name"] for o in objects if o["kind"] == "Namespace")
    p.kubectl("-n", space, "wait", "--for=condition=Available", "deployments", "--all", "--timeout=180s")


def remove(name):
    text = yaml.safe_dump_all(manifests(name))
    p.run("kubectl", "delete", "--ignore-not-found", "--wait=false", "-f", "-", text=text, check=False, timeout=120)


def queue(space, units, cpu=100):
    """A ClusterQueue with so many units, and its LocalQueue `users` in the namespace."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "gpus"}}
    resources = [
        {"name": name, "nominalQuota": quota} for name, quota in (("cpu", cpu), ("memory", "100Gi"), (UNITS, units))
    ]
    cluster = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "gpus"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory", UNITS],
                    "flavors": [{"name": "gpus", "resources": resources}],
                }
            ],
        },
    }
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "users", "namespace": space},
        "spec": {"clusterQueue": "gpus"},
    }
    for o in (flavor, cluster, local):
        # The API server calls Kueue's webhook, whose certificate comes a moment after its pod is ready.
        p.wait(60, f"Kueue to accept {o['kind']}", lambda o=o: p.apply(o, space, check=False).returncode == 0)


def used():
    """Units of the ClusterQueue's quota that admitted workloads hold."""
    status = p.get("clusterqueue", "gpus").get("status", {})
    for flavor in status.get("flavorsReservation", []):
        for r in flavor["resources"]:
            if r["name"] == UNITS:
                return int(r["total"])
    return 0


def workloads(space):
    """The names of Kueue's workloads: admitted, waiting."""
    admitted, waiting = [], []
    for w in p.get("-n", space, "workloads")["items"]:
        conditions = {c["type"]: c["status"] for c in w.get("status", {}).get("conditions", [])}
        if conditions.get("Finished") != "True":
            (admitted if conditions.get("Admitted") == "True" else waiting).append(w["metadata"]["name"])
    return admitted, waiting


def dump(space):
    print(p.kubectl("-n", space, "get", "workloads,jobs,pods", "-o", "wide", check=False))
    print(json.dumps(p.get("clusterqueue", "gpus").get("status", {}), indent=1))
