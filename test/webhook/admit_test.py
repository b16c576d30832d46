#!/usr/bin/env python3
"""`sluice admit` gives the webhook's decisions without a cluster: admit_test.py SLUICE GOLDEN_FOLDER"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

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
        arguments = ["-f", path]
        if "namespace" in header:
            arguments += ["-n", header["namespace"]]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(header.get("config", "{}"))
            config.flush()
            status, out, said = admit(program, *arguments, "--config", config.name)
        count += 1
        if os.path.exists(f"{folder}/{name}.denied"):
            check(status == 1 and not out, f"{name}: denied with status 1: {status}")
            for line in open(f"{folder}/{name}.denied").read().splitlines():
                if not line.startswith("#"):
                    check("denied: " + line.split(": ", 1)[1] in said, f"{name}: wanted {line}, got {said}")
            continue
        check(status == 0, f"{name}: {status} {said}")
        wanted = open(f"{folder}/{name}.injected").read()
        for warning in re.findall(r"^# (warning: .*)$", wanted, re.M):
            check(warning in said, f"{name}: wanted {warning}, got {said}")
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


def main():
    program, folder = sys.argv[1:3]
    golden_pairs(program, folder)
    # Several documents on stdin: each gets a decision, one denial sets the status, and accepted ones are printed.
    status, out, said = admit(
        program,
        "-f",
        "-",
        text=POD % ("good", "'0.5'") + "---\n" + POD % ("bad", "'1.5'") + "---\nkind: ConfigMap\nmetadata: {name: c}\n",
    )
    check(status == 1, f"one of three is denied: {status}")
    check('name: "good"' in out and 'name: "bad"' not in out and 'kind: "ConfigMap"' in out, out)
    check(
        "Pod good: a: 50 percent by sluice.dev/gpu-fraction" in said
        and "Pod bad: denied: sluice.dev/gpu-fraction: '1.5'" in said,
        said,
    )
    check("ConfigMap c: unchanged: this kind has no pods" in said, said)
    # A template: the patch changes the pod template.
    status, out, said = admit(program, "-f", "-", "-o", "patch", text=JOB % "0.25")
    patch = json.loads(out)
    check(
        status == 0 and patch and all(o["path"].startswith("/spec/jobTemplate/spec/template/") for o in patch),
        f"{status} {out}",
    )
    check("its pods: a: 25 percent" in said, said)
    status, out, said = admit(program, "-f", "-", "-o", "none", text=JOB % "25")
    check(status == 1 and out == "" and "spec/jobTemplate/spec/template: sluice.dev/gpu-fraction: '25'" in said, said)
    # JSON, a List, and the setting for gpu-memory.
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"sluice.dev/gpu-memory": "10Gi"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    status, out, said = admit(
        program, "-f", "-", "--gpu-memory", "40Gi", text=json.dumps({"kind": "List", "items": [pod, pod]})
    )
    check(status == 0 and said.count("a: 25 percent by sluice.dev/gpu-memory") == 2, said)
    status, _, said = admit(program, "-f", "-", text=json.dumps(pod))
    check(
        status == 1 and said.endswith("webhook.assumedGpuMemory; for this command: --gpu-memory 24Gi\n"),
        f"bytes without a known GPU are denied: {said}",
    )
    # Unreadable input gives status 2 and a message with the place.
    for arguments, text, wanted in (
        (["-f", "/none"], None, "/none: No such file or directory"),
        (["-f", "-"], "a: [", "-: line"),
        (["-f", "-"], "", "the file holds no manifest"),
        (["-f", "-"], "just text\n", "-: a document is no Kubernetes object; accepted: maps with apiVersion"),
        (["-f", "-", "--gpu-memory", "ten"], "{}", "--gpu-memory: 'ten' is not accepted"),
    ):
        status, _, said = admit(program, *arguments, text=text)
        check(status == 2 and wanted in said, f"{arguments}: {status} {said}")
    print(f"FAILED: {len(failures)}" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
