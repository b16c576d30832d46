"""Pods that come back to a real API server: applied twice, copied, restored. Part of admission_test.py."""

import copy
import json

from admission_harness import RESOURCE, check, wait

PODS = "/api/v1/namespaces/team-a/pods"
GPUS = json.dumps([{"uuid": "GPU-0", "model": "H100", "memory": 80 << 30}])
OWN_PRELOAD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "twice", "namespace": "team-a", "annotations": {"sluice.dev/gpu-fraction": "0.5"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "a",
                "env": [
                    {"name": "LD_PRELOAD", "value": "/usr/lib/libjemalloc.so.2"},
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                ],
            }
        ]
    },
}


def runtime_classes(server):
    """The classes of the golden pairs. The API server copies an overhead into the pod."""
    names = (
        "nvidia",
        "nvidia-legacy",
        "nvidia-cdi",
        "gvisor",
        "kata-qemu-nvidia-gpu",
        "isolated",
        "enclave-cc",
        "katana",
    )
    for name in names:
        body = {"metadata": {"name": name}, "handler": name}
        status, _, _ = server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", body)
        check(status == 201, "runtime class " + name)
    body = {
        "metadata": {"name": "isolated-vm"},
        "handler": "isolated-vm",
        "overhead": {"podFixed": {"memory": "160Mi", "cpu": "250m"}},
    }
    status, _, _ = server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", body)
    check(status == 201, "runtime class isolated-vm")


def define_kind(server, group, version, kind):
    """A CustomResourceDefinition that accepts any fields."""
    plural = kind.lower() + "s"
    body = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": kind + "List"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    status, answer, _ = server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    check(status == 201, f"kind {kind}: {status} {answer}")
    path = f"/apis/{group}/{version}/namespaces/team-a/{plural}"
    wait(lambda: server.call("GET", path)[0] == 200, f"the API server serves {kind}")


def variables(pod):
    return {e["name"]: e.get("value") for e in pod["spec"]["containers"][0].get("env", [])}


def applied_twice(server):
    path = PODS + "/twice"
    apply = lambda: server.call(
        "PATCH", path + "?fieldManager=kubectl&force=true", OWN_PRELOAD, "application/apply-patch+yaml"
    )
    status, first, _ = apply()
    check(status == 201, f"server-side apply: {status} {first}")
    env = variables(first)
    check(env["LD_PRELOAD"].endswith(":/usr/lib/libjemalloc.so.2"), f"the preload is merged: {env}")
    check("NVIDIA_VISIBLE_DEVICES" not in env, f"the share gives the GPU: {env}")
    status, second, _ = apply()
    check(status == 200, f"server-side apply again: {status} {second.get('message')}")
    check(second.get("spec") == first["spec"], "server-side apply again: the spec is the same")
    # kubectl's client-side apply sends the values that differ from the pod.
    patch = {"spec": {"containers": [{"name": "main", "env": OWN_PRELOAD["spec"]["containers"][0]["env"]}]}}
    status, third, _ = server.call("PATCH", path, patch, "application/strategic-merge-patch+json")
    check(status == 200, f"client-side apply: {status} {third.get('message')}")
    check(third.get("spec") == first["spec"], "client-side apply: the spec is the same")
    # A value that was really changed is the API server's to refuse.
    patch["spec"]["containers"][0]["env"][0] = {"name": "LD_PRELOAD", "value": "/usr/lib/libtcmalloc.so.4"}
    status, _, _ = server.call("PATCH", path, patch, "application/strategic-merge-patch+json")
    check(status == 422, f"a changed preload: {status}")


def copied_and_restored(server):
    node = {"metadata": {"name": "gpus", "annotations": {"sluice.dev/gpus": GPUS}}}
    check(server.call("POST", "/api/v1/nodes", node)[0] == 201, "node gpus")
    pod = {
        "metadata": {"name": "sized", "annotations": {"sluice.dev/gpu-memory": "20Gi"}},
        "spec": {"containers": [{"name": "main", "image": "a"}]},
    }
    wait(lambda: server.call("POST", PODS + "?dryRun=All", pod)[0] == 201, "the webhook sees the node")
    status, sized, _ = server.call("POST", PODS, pod)
    check(status == 201 and variables(sized)["SLUICE_GPU_MEMORY"] == "20Gi", f"gpu-memory: {status} {sized}")
    # `kubectl debug --copy-to` drops annotations and labels, and keeps the spec.
    copied = {"metadata": {"name": "copied"}, "spec": copy.deepcopy(sized["spec"])}
    copied["spec"]["containers"][0]["command"] = ["sh"]
    status, answer, _ = server.call("POST", PODS, copied)
    check(status == 201, f"a copy: {status} {answer.get('message')}")
    check(variables(answer) == variables(sized), f"a copy keeps its variables: {answer}")
    # A backup holds the placement of the extender.
    annotations = dict(sized["metadata"]["annotations"], **{"sluice.dev/placement": '{"main":["GPU-0"]}'})
    restored = {"metadata": {"name": "restored", "annotations": annotations}, "spec": sized["spec"]}
    status, answer, _ = server.call("POST", PODS, restored)
    check(status == 201, f"a restored pod: {status} {answer.get('message')}")
    check("sluice.dev/placement" not in answer["metadata"]["annotations"], "the old placement is gone")
    check(answer["spec"]["containers"][0]["resources"]["limits"][RESOURCE] == "25", "the share is the same")
    server.call("DELETE", "/api/v1/nodes/gpus")


def returning_pods(server):
    applied_twice(server)
    copied_and_restored(server)
