"""Pods that the webhook cannot read, and its absence, on a real API server: nothing that it denies passes unseen.

A pod of a user who means harm carries all that the policy demands: the marker and the library.
"""

from admission_harness import PLAIN, RESOURCE, Webhook, check, send

SHIM = "/opt/sluice/lib/libsluice.so"
PLACEMENT = "sluice.dev/placement"


def deep_fields():
    fields = {}
    for _ in range(200):
        fields = {"f:a": fields}
    return [
        {
            "manager": "m",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
    ]


def forged(**metadata):
    container = {
        "name": "a",
        "image": "x",
        "env": [{"name": "LD_PRELOAD", "value": SHIM}],
        "resources": {"limits": {RESOURCE: "1"}},
        "securityContext": {"privileged": True},
    }
    return {
        "metadata": {"annotations": {"sluice.dev/injected": "{}"}, **metadata},
        "spec": {"containers": [container]},
    }


def large(pod):
    # The API server writes each '<' with six bytes: 700 kB become 4.2 MB.
    pod["spec"]["containers"][0].setdefault("env", []).append({"name": "SCRIPT", "value": "<" * 700000})
    return pod


def unreadable(server, program, folder, kubeconfig, install):
    webhook = Webhook(program, folder, kubeconfig, "{}\n")
    webhook.start("--cert", folder + "/leaf1.crt", "--key", folder + "/leaf1.key")
    install(webhook)
    for what, pod in (
        ("readable", forged()),
        ("nested deeply", forged(managedFields=deep_fields())),
        ("large", large(forged())),
    ):
        status, answer, _ = send(server, pod, "team-a")
        check(status == 403, f"a forged pod that is {what} is denied: {status} {str(answer)[:300]}")
        if what != "readable":
            check("cannot read this pod" in str(answer), f"the denial of a pod that is {what}: {str(answer)[:300]}")

    # A large pod that runs: its owner may not place it.
    pod = large({"metadata": {"name": "large"}, "spec": {"containers": [{"name": "a", "image": "x"}]}})
    path = "/api/v1/namespaces/team-a/pods"
    status, answer, _ = server.call("POST", path, pod)
    check(status == 201, f"a large pod without a share starts: {status} {str(answer)[:300]}")
    merge = "application/merge-patch+json"
    change = {"metadata": {"annotations": {PLACEMENT: '{"a":["GPU-0"]}'}}}
    status, answer, _ = server.call("PATCH", path + "/large?dryRun=All", change, merge)
    check(status == 403, f"a placement of a large pod by its owner is denied: {status} {str(answer)[:300]}")
    change = {"metadata": {"annotations": {"example.com/note": "x"}}}
    status, answer, _ = server.call("PATCH", path + "/large?dryRun=All", change, merge)
    check(status == 200, f"another annotation of a large pod may change: {status} {str(answer)[:300]}")
    server.call("DELETE", path + "/large?gracePeriodSeconds=0")

    # Without the webhook the owner may make no change that it denies. All else goes on.
    status, answer, _ = server.call("POST", path, {"metadata": {"name": "own"}, "spec": PLAIN["spec"]})
    check(status == 201, f"a pod without a share starts: {status} {str(answer)[:300]}")
    check(webhook.stop() == 0, "the webhook exits with status 0")
    for annotation, value, accepted in (
        (PLACEMENT, '{"a":["GPU-0"]}', False),
        ("sluice.dev/gpu-fraction", "9", False),
        ("example.com/note", "x", True),
    ):
        change = {"metadata": {"annotations": {annotation: value}}}
        status, answer, _ = server.call("PATCH", path + "/own?dryRun=All", change, merge)
        check((status == 200) == accepted, f"{annotation} in an outage: {status} {str(answer)[:300]}")
    server.call("DELETE", path + "/own?gracePeriodSeconds=0")
