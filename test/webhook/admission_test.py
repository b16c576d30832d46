#!/usr/bin/env python3
"""The webhook in the admission chain of a real API server.

admission_test.py SLUICE_WEBHOOK GOLDEN_PROGRAM GOLDEN_FOLDER [--latency]

Compares golden pairs with the chain's results, and CEL conditions with the C++ ones. Further cases: the policy during
an outage, templates, updates, self-made certificates (self_signed_cases.py), the API server's own measure of the
webhook's time (--latency: only that)."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import admission_harness as harness
import apiserver as api
from admission_harness import (
    RESOURCE,
    Webhook,
    check,
    config_of,
    eventually,
    known_nodes,
    load_manifests,
    outage,
    put,
    send,
    wait,
    yaml_documents,
)
from returning_pod_cases import define_kind, returning_pods, runtime_classes
from self_signed_cases import self_signed


def changeable_fields(pod):
    """The fields that sluice may change: the marker, env, the resource, the claims, the runtime class."""
    out = {
        "annotations": pod.get("metadata", {}).get("annotations") or {},
        "class": pod["spec"].get("runtimeClassName"),
        "claims": pod["spec"].get("resourceClaims") or [],
    }
    for c in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        env = []
        for e in c.get("env") or []:
            e = json.loads(json.dumps(e).replace('"apiVersion": "v1", ', ""))  # defaulted in fieldRef
            if e.get("value") == "":
                del e["value"]
            env.append(e)
        r = c.get("resources") or {}
        out[c["name"]] = (
            env,
            {k: str((r.get(k) or {}).get(RESOURCE)).replace("1k", "1000") for k in ("limits", "requests")},
            r.get("claims") or [],
        )
    return out


def golden_problem(server, c):
    """The difference from the golden pair, or None."""
    status, answer, warnings = send(server, c["documents"][0], c["namespace"])
    text = answer.get("message", "")
    if c["denied"]:
        return (
            None
            if status == 403 and c["message"] in text
            else f"{c['name']}: wanted a denial, got {status} {text[:300]}"
        )
    if c["name"].startswith("namespace-") and c["concerns"]:
        kept = status == 403 and "has not handled it" in text
        return None if kept else f"{c['name']}: an excluded namespace must not allow it: {status}"
    if c["name"] == "mirror" and status in (403, 422):
        return None  # only kubelets may create mirror pods
    if status != 201:
        return f"{c['name']}: {status} {json.dumps(answer)[:400]}"
    if changeable_fields(answer) != changeable_fields(c["result"]):
        return (
            f"{c['name']}: differs\n  actual   {changeable_fields(answer)}\n  expected {changeable_fields(c['result'])}"
        )
    lost = [w for w in c["warnings"] if not any(w[:100] in s.replace('\\"', '"') for s in warnings)]
    return f"{c['name']}: warnings not shown: {lost}: {warnings}" if lost else None


def golden_pairs(server, webhook, cases, reapply):
    groups = {}
    for c in cases:
        if len(c["documents"]) == 1 and c["documents"][0].get("kind") == "Pod":
            groups.setdefault((config_of(c), json.dumps(c["nodes"])), []).append(c)
    sent = 0
    for (config, nodes), group in sorted(groups.items()):
        loaded = webhook.metric('sluice_webhook_reloads_total{result="loaded",what="config"}')
        webhook.write(config + "\n# " + str(time.time()) + "\n")
        wait(
            lambda: webhook.metric('sluice_webhook_reloads_total{result="loaded",what="config"}') > loaded,
            "config " + config,
        )
        reapply(config)
        with known_nodes(server, webhook, json.loads(nodes)):
            end = time.time() + 15
            for c in group:
                if c["name"] in ("annotation-not-a-string", "env-not-a-list"):
                    continue  # the API server denies them before it calls a webhook
                if c["name"].startswith("written-") and "managedFields" in c["documents"][0]["metadata"]:
                    continue  # the API server writes this field itself (reinvocation_cases.py)
                eventually(lambda c=c: golden_problem(server, c), end)
                sent += 1
    print(f"{sent} golden pods through the admission chain")


def workloads(server, cases):
    places = {
        "Deployment": "apps/v1/namespaces/team-a/deployments",
        "StatefulSet": "apps/v1/namespaces/team-a/statefulsets",
        "ReplicaSet": "apps/v1/namespaces/team-a/replicasets",
        "Job": "batch/v1/namespaces/team-a/jobs",
        "CronJob": "batch/v1/namespaces/team-a/cronjobs",
        "DaemonSet": "apps/v1/namespaces/team-a/daemonsets",
        "ReplicationController": "/api/v1/namespaces/team-a/replicationcontrollers",
        "PyTorchJob": "kubeflow.org/v1/namespaces/team-a/pytorchjobs",
    }
    define_kind(server, "kubeflow.org", "v1", "PyTorchJob")
    for c in cases:
        w = c["documents"][0]
        # A CronJob has its template deeper; one without a template is for `sluice admit` alone.
        where = (
            w.get("spec", {}).get("jobTemplate", {}).get("spec", {})
            if w.get("kind") == "CronJob"
            else w.get("spec", {})
        )
        if w.get("kind") not in places or "template" not in where:
            continue
        w = copy.deepcopy(w)
        template = w["spec"]["jobTemplate"]["spec"]["template"] if w["kind"] == "CronJob" else w["spec"]["template"]
        if places[w["kind"]].startswith("apps"):
            template["spec"]["restartPolicy"] = "Always"
            template["metadata"]["labels"] = {"a": "b"}
            w["spec"]["selector"] = {"matchLabels": {"a": "b"}}
            if w["kind"] == "StatefulSet":
                w["spec"]["serviceName"] = "x"
        place = places[w["kind"]]
        place = place if place.startswith("/") else "/apis/" + place
        status, answer, warnings = server.call("POST", place + "?dryRun=All", w)
        check(
            (status == 403) == c["denied"] and status in (201, 403),
            f"{c['name']}: {status} {answer.get('message', '')[:300]}",
        )
        if c["name"] == "template-misplaced":
            check(any("has no effect" in x for x in warnings), f"{c['name']}: no warning: {warnings}")
    # An unrelated change of a workload with sluice's annotations is not sent to the webhook.
    d = next(c for c in cases if c["name"] == "template-deployment")["documents"][0]
    d = copy.deepcopy(d)
    d["spec"]["selector"] = {"matchLabels": {"a": "b"}}
    d["spec"]["template"]["metadata"]["labels"] = {"a": "b"}
    d["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    status, answer, _ = server.call("POST", "/apis/apps/v1/namespaces/team-a/deployments", d)
    check(status == 201, f"deployment: {status}")
    path = "/apis/apps/v1/namespaces/team-a/deployments/" + d["metadata"]["name"]
    merge = "application/merge-patch+json"
    fraction = lambda v: {"spec": {"template": {"metadata": {"annotations": {"sluice.dev/gpu-fraction": v}}}}}
    status, answer, _ = server.call("PATCH", path, fraction("7.5"), merge)
    check(status == 403 and "0.01 to 1" in answer["message"], f"deployment's bad change: {status}")
    status, answer, _ = server.call("PATCH", path, fraction("0.7"), merge)
    check(status == 200, f"deployment's good change: {status}")


def update_pairs(server, cases):
    """The golden pairs of an old and a new pod.

    Creates the old pods before the webhook is installed, and returns the change.
    """
    pairs = [c for c in cases if len(c["documents"]) == 2]
    for c in pairs:
        old = copy.deepcopy(c["documents"][0])
        old["metadata"].update(name=c["name"], namespace="team-a")
        status, answer, _ = server.call("POST", "/api/v1/namespaces/team-a/pods", old)
        check(status == 201, f"{c['name']}: the old pod: {status} {answer}")

    def update(c):
        path = "/api/v1/namespaces/team-a/pods/" + c["name"]
        before = c["documents"][0]["metadata"].get("annotations") or {}
        after = c["documents"][1]["metadata"].get("annotations") or {}
        patch = {"metadata": {"annotations": dict({k: None for k in before if k not in after}, **after)}}
        status, answer, _ = server.call("PATCH", path, patch, "application/merge-patch+json")
        check(status == (403 if c["denied"] else 200), f"{c['name']}: {status} {json.dumps(answer)[:300]}")
        if status == 403:
            wanted = [line.split(": ", 1)[1] for line in c["text"].splitlines() if not line.startswith("#")]
            check(
                all(w in answer["message"] for w in wanted),
                f"{c['name']}: wanted {wanted}, got {answer['message']}",
            )

    def change(webhook):
        groups = {}
        for c in pairs:
            groups.setdefault(json.dumps(c["nodes"]), []).append(c)
        for nodes, group in sorted(groups.items()):
            with known_nodes(server, webhook, json.loads(nodes)):
                for c in group:
                    update(c)
        print(f"{len(pairs)} golden updates through the admission chain")

    return change


def updates(server):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "live", "annotations": {"sluice.dev/gpu-fraction": "0.5"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    status, answer, _ = server.call("POST", "/api/v1/namespaces/team-a/pods", pod)
    check(status == 201, f"pod to update: {status} {answer}")
    merge = "application/merge-patch+json"
    path = "/api/v1/namespaces/team-a/pods/live"

    def change(**annotations):
        body = {"metadata": {"annotations": {k.replace("_", "-"): v for k, v in annotations.items()}}}
        status, answer, _ = server.call(
            "PATCH",
            path + "?dryRun=All",
            {"metadata": {"annotations": {"sluice.dev/" + k: v for k, v in body["metadata"]["annotations"].items()}}},
            merge,
        )
        return status, answer.get("message", "")

    for good in (
        {"gpu_fraction": "0.9"},
        {"memory_limit": "64Gi"},
        {"memory_factor": "70"},
        {"compute_request": "0.2", "compute_limit": "0.4"},
        {"prefetch": "off"},
        {"log_level": "DEBUG"},
    ):
        check(change(**good)[0] == 200, f"live change {good}: {change(**good)}")
    for bad in ({"gpu_fraction": "2"}, {"visible_memory": "limit"}, {"injected": "{}"}, {"granted": "{}"}):
        status, _message = change(**bad)
        check(status == 403, f"change {bad} must be denied: {status}")
    check(
        "memory-limit, memory-factor" in change(visible_memory="limit")[1], "the denial lists the changeable settings"
    )
    check(change(memory_factor="700")[0] == 403, "a wrong live value is denied")


def latency(server):
    """1,000 dry-run creates: the API server's own histogram, and the client's times with and without the webhook."""
    share = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "t-", "annotations": {"sluice.dev/gpu-fraction": "0.5"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "t-", "annotations": {"team.example/x": "0.5"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    name = "apiserver_admission_webhook_admission_duration_seconds"

    def buckets():
        c = server.connection()
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        out = {}
        for le, v in re.findall(
            name
            + r'_bucket\{name="mutate.sluice.dev",operation="CREATE",rejected="false",'
            + r'type="admit",le="([^"]+)"\} (\d+)',
            text,
        ):
            out[float("inf") if le == "+Inf" else float(le)] = int(v)
        return out

    connection = server.connection()
    times = {"share": [], "plain": []}
    for pod in (share, plain):
        send(server, pod, "team-a", connection)
    before = buckets()
    for _ in range(1000):
        for kind, pod in (("share", share), ("plain", plain)):  # alternating, so that both see the same load
            start = time.perf_counter()
            status, answer, _ = send(server, pod, "team-a", connection)
            times[kind].append((time.perf_counter() - start) * 1000)
            if status != 201:
                check(False, f"dry-run create: {status} {answer}")
                return
    after = buckets()
    counts = {le: after[le] - before.get(le, 0) for le in sorted(after)}
    total = counts.get(float("inf"), 0)
    p99 = next((le for le, n in counts.items() if n >= 0.99 * total), None)
    print(
        f"{name}: {total} calls, p99 in the bucket up to {p99} s; "
        + ", ".join(f"<={le}: {n}" for le, n in counts.items())
    )
    for kind, what in (("share", "with the webhook"), ("plain", "without")):
        t = sorted(times[kind])
        print(
            f"1,000 dry-run creates {what}, measured by the client: "
            f"p50 {t[500]:.2f} p90 {t[900]:.2f} p99 {t[990]:.2f} max {t[-1]:.2f} ms"
        )
    extra = sorted(a - b for a, b in zip(times["share"], times["plain"]))
    print(f"difference of neighbours: p50 {extra[500]:.2f} p99 {extra[990]:.2f} ms")
    check(total >= 1000, "the API server counted the webhook's calls")


def main():
    program, golden, pairs = sys.argv[1:4]
    programs = api.skip_without_programs()
    folder = tempfile.mkdtemp(prefix="sluice-admission-")
    server = api.ApiServer(folder, programs)
    webhook = None
    try:
        server.start()
        api.make_leaf(folder, "webhook", "/CN=webhook", names="IP:127.0.0.1")
        for ns in ("team-a", "gpu"):
            check(server.call("POST", "/api/v1/namespaces", {"metadata": {"name": ns}})[0] == 201, "namespace " + ns)
        runtime_classes(server)
        lines = (
            subprocess.run([golden, pairs, "--expect"], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()
        )
        cases = [json.loads(line) for line in lines]
        webhook = Webhook(program, folder, folder + "/kubeconfig", "{}\n")
        certificate = ["--cert", folder + "/webhook.crt", "--key", folder + "/webhook.key"]
        webhook.start(*certificate)

        change = update_pairs(server, cases)

        def apply(config):
            text = load_manifests(
                program,
                "--config",
                webhook.config_file,
                "--url",
                f"https://127.0.0.1:{webhook.port}",
                "--ca",
                folder + "/ca.crt",
            )
            put(server, yaml_documents(golden, text, folder + "/manifests"))
            time.sleep(1.5)  # for the API server's informers, whose state is not visible
            probe = {
                "metadata": {"name": "probe", "annotations": {"sluice.dev/gpu-fraction": "9.9"}},
                "spec": {"containers": [{"name": "a", "image": "x"}]},
            }
            wait(
                lambda: "0.01 to 1" in send(server, probe, "team-a")[1].get("message", ""),
                "the API server calls the webhook",
            )

        apply("{}")
        if sys.argv[4:] == ["--latency"]:
            latency(server)
            return 1 if harness.failures else 0
        golden_pairs(server, webhook, cases, apply)
        webhook.write("{}\n")
        apply("{}")
        workloads(server, cases)
        change(webhook)
        updates(server)
        returning_pods(server)
        latency(server)
        check(webhook.stop() == 0, "the webhook exits with status 0")
        webhook = None
        outage(server, cases, False)
        text = (
            load_manifests(program, "--config", folder + "/aliases.yaml")
            if open(folder + "/aliases.yaml", "w").write("aliases: true\n")
            else ""
        )
        put(
            server,
            [m for m in yaml_documents(golden, text, folder + "/manifests") if m["kind"].startswith("ValidatingAdm")],
        )
        time.sleep(2)
        outage(server, cases, True)
        self_signed(server, program, folder, golden)
    finally:
        for w in Webhook.running:
            w.process.kill()
        if harness.failures:
            print(open(folder + "/webhook.log").read()[-3000:] if os.path.exists(folder + "/webhook.log") else "")
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"FAILED: {len(harness.failures)}" if harness.failures else "all passed")
    return 1 if harness.failures else 0


if __name__ == "__main__":
    sys.exit(main())
