"""Claims of the product tests: the examples, templates, and pods that use them."""

import os

import product as p
import yaml

SPACE = f"users-{os.getpid()}"
EXAMPLES = p.ROOT / "examples" / "claims"


def documents(name):
    """The example's documents, with images that the node has."""
    return [p.local(d) for d in yaml.safe_load_all((EXAMPLES / name).read_text()) if d]


def claim_template(name, memory, compute="1", **parameters):
    request = {"deviceClassName": "sluice.dev", "capacity": {"requests": {"memory": memory, "compute": compute}}}
    devices = {"requests": [{"name": "gpu", "exactly": request}]}
    if parameters:
        values = {k.replace("_", "-"): v for k, v in parameters.items()}
        devices["config"] = [{"opaque": {"driver": "sluice.dev", "parameters": values}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def with_claim(pod, template):
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return pod


def unscheduled(name):
    conditions = p.get("-n", SPACE, "pod", name)["status"].get("conditions", [])
    return next(
        (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )
