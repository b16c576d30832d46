#!/usr/bin/python3
"""`sluice admit` gives the webhook's decisions without a cluster: admit_test.py SLUICE GOLDEN_FOLDER"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import yaml

failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


def admit(program, *arguments, text=None):
    done = subprocess.run(
        [program, "admit", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def golden_pairs(program, folder):
    """Every pair without nodes gives the same manifest, or the same denials."""
    count = 0
    for path in sorted(glob.glob(folder + "/*.yaml")):
        text = open(path).read()
        header = dict(re.findall(r"^# (config|namespace|nodes): (.*)$", text, re.M))
        if "nodes" in header or "\n---" in text:
            continue
        name = os.path.basename(path)[:-5]
        arguments = ["-f", path, "-n", header.get("namespace", "team-a")]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(header.get("config", "{}"))
            config.flush()
            status, out, output = admit(program, *arguments, "--config", config.name)
        count += 1
        if os.path.exists(f"{folder}/{name}.denied"):
            check(status == 1 and not out, f"{name}: denied with status 1: {status}")
            for line in open(f"{folder}/{name}.denied").read().splitlines():
                if not line.startswith("#"):
                    check("denied: " + line.split(": ", 1)[1] in output, f"{name}: wanted {line}, got {output}")
            continue
        check(status == 0, f"{name}: {status} {output}")
        wanted = open(f"{folder}/{name}.injected").read()
        for warning in re.findall(r"^# (warning: .*)$", wanted, re.M):
            check(warning in output, f"{name}: wanted {warning}, got {output}")
        if re.search(r"^kind: Pod$", text, re.M) and "# untouched" not in wanted:
            wanted = "".join(line + "\n" for line in wanted.splitlines() if not line.startswith("# "))
            out = re.sub(r'(\\"version\\":\\")[^\\]*', r"\1VERSION", out)
            check(out == wanted, f"{name}: differs\n{out}\nexpected\n{wanted}")
    print(f"{count} golden pairs by sluice admit")
    check(count > 100, "more than 100 pairs need no nodes")


POD = """apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {sluice.dev/gpu-fraction: %s}}
spec: {containers: [{name: a, image: x}]}
"""
JOB = """apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate:
    spec:
      template:
        metadata: {annotations: {sluice.dev/gpu-fraction: '%s'}}
        spec: {containers: [{name: a, image: x}]}
"""
RAY = """apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray}
spec:
  headGroupSpec:
    template:
      metadata: {annotations: {sluice.dev/gpu-fraction: '%s'}}
      spec: {containers: [{name: head, image: rayproject/ray}]}
  workerGroupSpecs:
  - template:
      metadata: {annotations: {sluice.dev/gpu-fraction: '%s'}}
      spec: {containers: [{name: worker, image: rayproject/ray}]}
"""


def conversions(program):
    """--convert: the manifest afterwards is accepted without aliases and gives the share that aliases give."""
    metadata = {"name": "p", "labels": {"team": "a"}}
    fraction = {"gpu-fraction.sluice.dev/a": "0.5"}
    cases = [
        ({"gpu-fraction": "0.5"}, {}, fraction),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"}, {}, {"gpu-fraction.sluice.dev/b": "0.5"}),
        ({"gpu-memory": "4000"}, {}, {"gpu-memory.sluice.dev/a": "4000Mi"}),
        (
            {
                "nvidia.com/container.a.gpu-memory.request": "8Gi",
                "nvidia.com/container.a.gpu-memory.limit": "16Gi",
            },
            {},
            {"gpu-memory.sluice.dev/a": "8Gi", "memory-limit.sluice.dev/a": "16Gi"},
        ),
        (
            {},
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": 30, "cpu": "4"},
            {"gpu-memory.sluice.dev/a": "8000Mi", "compute-limit.sluice.dev/a": "0.3"},
        ),
        (
            {},
            {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "8000"},
            {"gpu-count.sluice.dev/a": "2", "gpu-memory.sluice.dev/a": "8000Mi"},
        ),
        ({}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}, {"gpu-fraction.sluice.dev/a": "0.25"}),
        ({}, {"nvshare.com/gpu": 1}, {"gpu-fraction.sluice.dev/a": "0.1"}),
        ({}, {"nvidia.com/gpu": 1}, {}),
    ]
    for annotations, limits, wanted in cases:
        template = {
            "metadata": dict(metadata, annotations=dict(annotations, other="x")),
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [
                    {"name": "a", "image": "x", "resources": {"limits": limits}},
                    {"name": "b", "image": "y"},
                ],
            },
        }
        pod = dict(template, apiVersion="v1", kind="Pod")
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
        for given, at in ((pod, lambda m: m), (job, lambda m: m["spec"]["template"])):
            status, out, output = admit(program, "-f", "-", "--convert", text=json.dumps(given))
            converted = at(yaml.safe_load(out))
            found = converted["metadata"]["annotations"]
            check(
                status == 0 and found == dict(wanted, other="x"), f"{annotations} {limits}: {status} {output} {found}"
            )
            left = converted["spec"]["containers"][0]["resources"]["limits"]
            kept = {k: v for k, v in limits.items() if not wanted or k == "cpu"}
            check(left == kept, f"{annotations} {limits}: {left}")
            check(("schedulerName" in converted["spec"]) == (not wanted), f"{annotations} {limits}: the scheduler")
            if not wanted:
                continue
            sized = ["-f", "-", "-o", "none", "--gpu-memory", "80Gi"]
            _, _, as_alias = admit(program, *sized, "--aliases", text=json.dumps(given))
            status, _, as_ours = admit(program, *sized, text=out)
            share = lambda output: re.findall(r": (\w+: \d+ percent)", output)
            check(status == 0 and share(as_ours) and share(as_ours) == share(as_alias), f"{as_ours} and {as_alias}")
    status, out, output = admit(
        program,
        "-f",
        "-",
        "--convert",
        text=POD % ("p", "'0.5'") + "---\n" + POD.replace("sluice.dev/", "") % ("q", "'1'"),
    )
    check(status == 0 and "p: unchanged" in output and "q: converted" in output and out.count("---") == 1, output)
    bad = {"nvidia.com/gpu": 40, "nvidia.com/gpumem": 8000}
    spec = {"containers": [{"name": "a", "image": "x", "resources": {"limits": bad}}]}
    status, out, output = admit(program, "-f", "-", "--convert", text=json.dumps({"kind": "Pod", "spec": spec}))
    check(status == 1 and not out and "(nvidia.com/gpu of container 'a'): '40' is not accepted" in output, output)


def main():
    program, folder = sys.argv[1:3]
    golden_pairs(program, folder)
    # Several documents on stdin: each gets a decision, one denial sets the status, and accepted ones are printed.
    status, out, output = admit(
        program,
        "-f",
        "-",
        text=POD % ("good", "'0.5'") + "---\n" + POD % ("bad", "'1.5'") + "---\nkind: ConfigMap\nmetadata: {name: c}\n",
    )
    check(status == 1, f"one of three is denied: {status}")
    check('name: "good"' in out and 'name: "bad"' not in out and 'kind: "ConfigMap"' in out, out)
    check(
        "Pod good: a: 50 percent by sluice.dev/gpu-fraction" in output
        and "Pod bad: denied: sluice.dev/gpu-fraction: '1.5'" in output,
        output,
    )
    check("ConfigMap c: unchanged: this kind has no pods" in output, output)
    # A template: the patch changes the pod template.
    status, out, output = admit(program, "-f", "-", "-o", "patch", text=JOB % "0.25")
    patch = json.loads(out)
    check(
        status == 0 and patch and all(o["path"].startswith("/spec/jobTemplate/spec/template/") for o in patch),
        f"{status} {out}",
    )
    check("its pods: a: 25 percent" in output, output)
    status, out, output = admit(program, "-f", "-", "-o", "none", text=JOB % "25")
    check(
        status == 1 and out == "" and "spec/jobTemplate/spec/template: sluice.dev/gpu-fraction: '25'" in output, output
    )
    # JSON, a List, and the setting for gpu-memory.
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"sluice.dev/gpu-memory": "10Gi"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    status, out, output = admit(
        program, "-f", "-", "--gpu-memory", "40Gi", text=json.dumps({"kind": "List", "items": [pod, pod]})
    )
    check(status == 0 and output.count("a: 25 percent by sluice.dev/gpu-memory") == 2, output)
    status, _, output = admit(program, "-f", "-", text=json.dumps(pod))
    check(
        status == 1
        and output.endswith("webhook.assumedGpuMemory (container 'a'); for this command: --gpu-memory 24Gi\n"),
        f"bytes without a known GPU are denied: {output}",
    )
    # A workload of any kind: each template's pods, and annotations that no template holds.
    status, out, output = admit(program, "-f", "-", "-o", "patch", text=RAY % ("0.25", "0.5"))
    paths = [o["path"] for o in json.loads(out)]
    check(
        status == 0
        and "its pods (spec/headGroupSpec/template): head: 25 percent" in output
        and "its pods (spec/workerGroupSpecs/0/template): worker: 50 percent" in output
        and any(p.startswith("/spec/workerGroupSpecs/0/template/spec/containers/0/") for p in paths),
        f"{status} {output} {paths}",
    )
    status, _, output = admit(program, "-f", "-", text=RAY % ("0.25", "5.5"))
    check(status == 1 and "denied: spec/workerGroupSpecs/0/template: sluice.dev/gpu-fraction: '5.5'" in output, output)
    # The handler of a RuntimeClass in the same input, whatever the order.
    sandbox = POD % ("boxed", "'0.5'") + "  runtimeClassName: isolated\n"
    runtime = "---\nkind: RuntimeClass\nmetadata: {name: isolated}\nhandler: runsc\n"
    for text, warned in ((sandbox, False), (sandbox + runtime, True)):
        text = text.replace(
            "spec: {containers: [{name: a, image: x}]}\n", "spec:\n  containers: [{name: a, image: x}]\n"
        )
        status, _, output = admit(program, "-f", "-", "-o", "none", text=text)
        check(status == 0 and ("--nvproxy" in output) == warned, f"{warned}: {status} {output}")
    conversions(program)
    # Unreadable input gives status 2 and a message with the place.
    for arguments, text, wanted in (
        (["-f", "/none"], None, "/none: No such file or directory"),
        (["-f", "-"], "a: [", "-: line"),
        (["-f", "-"], "", "the file holds no manifest"),
        (["-f", "-"], "just text\n", "-: a document is no Kubernetes object; accepted: maps with apiVersion"),
        (["-f", "-", "--gpu-memory", "ten"], "{}", "--gpu-memory: 'ten' is not accepted"),
    ):
        status, _, output = admit(program, *arguments, text=text)
        check(status == 2 and wanted in output, f"{arguments}: {status} {output}")
    print(f"FAILED: {len(failures)}" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
