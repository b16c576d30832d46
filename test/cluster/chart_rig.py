"""Renders the chart for tests without a cluster.

Needs helm (built by tools/build) and python3-yaml; skips with the reason where one is missing.
"""

import json
import pathlib
import subprocess
import sys

try:
    import yaml
except ImportError:
    sys.exit(print("SKIPPED: python3-yaml is missing (scripts/setup cluster installs it)") or 4)

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "charts" / "sluice"


def helm_program():
    built = subprocess.run([HERE / "tools" / "build", "helm"], capture_output=True, text=True)
    if built.returncode:
        sys.exit(print("SKIPPED: helm cannot be built: " + built.stderr.strip()) or 4)
    return built.stdout.strip() + "/helm"


HELM = helm_program()


def run(*arguments):
    return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True)


def render(*settings, values=None):
    arguments = ["template", "sluice", CHART, "--namespace", "sluice-system"]
    for s in settings:
        arguments += ["--set", s]
    if values is not None:
        arguments += ["--set-json", *[f"{k}={json.dumps(v)}" for k, v in values.items()]]
    result = run(*arguments)
    if result.returncode:
        raise AssertionError(result.stderr)
    return [d for d in yaml.safe_load_all(result.stdout) if d]


def one(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and (name is None or o["metadata"]["name"] == name)]
    assert len(found) == 1, f"{kind} {name}: {len(found)} found"
    return found[0]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def node_pod(*settings):
    return pod_of(one(render(*settings), "DaemonSet"))


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def config(objects, name):
    return yaml.safe_load(one(objects, "ConfigMap", "sluice")["data"][name])
