#!/usr/bin/env python3
"""Faults around the webhook, against a real API server: faults_test.py SLUICE_WEBHOOK GOLDEN_PROGRAM GOLDEN_FOLDER

An API server that is unreachable at the start; certificates that change under load, are damaged or expired; 500 slow
connections; API servers without ValidatingAdmissionPolicy; a second webhook (reinvocation_cases.py); refused pods
(refused_pod_cases.py)."""

import copy
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import admission_harness as harness
import apiserver as api
from admission_harness import ADMISSION, PLAIN, WITH_SHARE, Webhook, check, read, send, wait
from refused_pod_cases import refused_pods, webhook_account
from reinvocation_cases import reinvocation
from returning_pod_cases import runtime_classes
from unreadable_cases import unreadable

POLICY_DENIAL = "has not handled it"


def unreachable_at_start(server, program, folder, kubeconfig):
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGKILL)
    server.processes["kube-apiserver"].wait()
    made = Webhook(
        program,
        folder + "/away1",
        kubeconfig,
        "selfSigned: {secretNamespace: sluice-system, secretName: cert, "
        "service: webhook, mutating: [], validating: []}\n",
    )
    given = Webhook(program, folder + "/away2", kubeconfig, "assumedGpuMemory: 20Gi\n")
    made.start()
    given.start("--cert", folder + "/webhook.crt", "--key", folder + "/webhook.key")
    check(made.metrics("/healthz") == "ok\n", "/healthz works without an API server")
    check(
        "no certificate yet" in made.metrics("/readyz"), "not ready without a certificate: " + made.metrics("/readyz")
    )
    check(given.metrics("/readyz") == "ok\n", "ready with certificate files and no API server")
    memory = copy.deepcopy(WITH_SHARE)
    memory["metadata"]["annotations"] = {"sluice.dev/gpu-memory": "10Gi"}
    answer = ask(given, folder, memory)
    check(answer["response"]["allowed"] and "patch" in answer["response"], f"decides without an API server: {answer}")
    server.spawn("kube-apiserver")
    server.wait()
    wait(
        lambda: made.metrics("/readyz") == "ok\n",
        "the webhook makes its certificate when the API server is reachable",
        60,
    )
    status, _, _ = server.call(
        "POST",
        "/api/v1/nodes",
        {
            "metadata": {
                "name": "n1",
                "annotations": {"sluice.dev/gpus": '[{"uuid":"GPU-0","model":"L4","memory":24696061952}]'},
            }
        },
    )
    check(status == 201, "node")
    wait(
        lambda: given.metric("sluice_webhook_gpu_nodes") == 1,
        "the webhook watches nodes when the API server is reachable",
        60,
    )
    server.call("DELETE", "/api/v1/nodes/n1")
    # The webhook also exits quickly while the API server hangs.
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGSTOP)  # accepts connections, answers none
    time.sleep(2)
    for w in (made, given):
        start = time.time()
        check(
            w.stop() == 0 and time.time() - start < 12, f"exits while the API server hangs: {time.time() - start:.1f} s"
        )
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGCONT)
    server.wait()


def ask(webhook, folder, pod, timeout=10):
    """Sends one review without the API server."""
    context = ssl.create_default_context(cafile=folder + "/ca.crt")
    import http.client

    c = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=context, timeout=timeout)
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "namespace": "team-a",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": pod,
        },
    }
    c.request("POST", "/mutate", json.dumps(review), {"Content-Type": "application/json"})
    return json.loads(c.getresponse().read())


def place(folder, version, certificate, key):
    """Changes a projected volume as the kubelet does: a new folder, and a renamed symlink."""
    new = f"{folder}/..{version}"
    os.makedirs(new)
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        with open(f"{new}/{name}", "wb") as f:
            f.write(content)
    os.symlink(f"..{version}", folder + "/..new")
    os.rename(folder + "/..new", folder + "/..data")


def leaf(folder, name, **options):
    api.make_leaf(folder, name, "/CN=" + name, names="IP:127.0.0.1", **options)
    return read(f"{folder}/{name}.crt"), read(f"{folder}/{name}.key")


def certificates(server, program, folder, kubeconfig, install):
    tls = folder + "/tls"
    os.makedirs(tls)
    one, two = leaf(folder, "leaf1"), leaf(folder, "leaf2")
    place(tls, "0", *one)
    webhook = Webhook(program, folder, kubeconfig, "{}\n")
    webhook.start("--cert", tls + "/..data/tls.crt", "--key", tls + "/..data/tls.key")
    install(webhook)

    # The certificate changes under load, and every create is handled. New connections exercise the handshakes.
    stop, bad, count = threading.Event(), [], [0]

    def creates():
        connection = server.connection()
        while not stop.is_set():
            status, answer, _ = send(server, WITH_SHARE, "team-a", connection)
            count[0] += 1
            if status != 201 or "sluice.dev/injected" not in answer["metadata"]["annotations"]:
                bad.append((status, json.dumps(answer)[:300]))

    def connects():
        while not stop.is_set():
            try:
                if not ask(webhook, folder, WITH_SHARE)["response"]["allowed"]:
                    bad.append("denied without the API server")
                count[0] += 1
            except OSError as e:
                bad.append(f"without the API server: {e}")

    threads = [threading.Thread(target=t) for t in (creates, creates, connects)]
    loaded = 'sluice_webhook_reloads_total{result="loaded",what="certificate"}'
    before = webhook.metric(loaded)
    for t in threads:
        t.start()
    for i in range(6):
        place(tls, str(i + 1), *(two if i % 2 == 0 else one))
        wait(lambda i=i: webhook.metric(loaded) >= before + i + 1, "the certificate is loaded")
    stop.set()
    for t in threads:
        t.join()
    check(not bad, f"{len(bad)} of {count[0]} requests failed while certificates changed: {bad[:3]}")
    print(f"{count[0]} requests during 6 changes of the certificate, {len(bad)} failed")

    # Damaged files: the current certificate stays in use.
    for name, crt, key in (("truncated", two[0][:300], two[1]), ("mismatched", two[0], one[1]), ("empty", b"", b"")):
        faults = webhook.metric('sluice_webhook_reloads_total{result="bad",what="certificate"}')
        place(tls, name.replace(" ", ""), crt, key)
        wait(
            lambda f=faults: webhook.metric('sluice_webhook_reloads_total{result="bad",what="certificate"}') > f,
            name + " files are noticed",
        )
        check(send(server, WITH_SHARE, "team-a")[0] == 201, f"a {name} certificate file changes nothing")
    os.remove(tls + "/..data")
    time.sleep(1.5)
    check(
        send(server, WITH_SHARE, "team-a")[0] == 201 and webhook.metrics("/readyz") == "ok\n",
        "removed certificate files change nothing",
    )
    slow_connections(server, webhook)
    check(webhook.stop() == 0, "the webhook exits with status 0")

    # Started with an expired certificate, or with one of an untrusted CA: pods are denied as if the webhook were down.
    api.openssl(
        folder,
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=old",
        "-keyout",
        "old.key",
        "-out",
        "old.csr",
    )
    with open(folder + "/old.cnf", "w") as f:
        f.write(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=old.db\nserial=old.serial\nnew_certs_dir=.\ndefault_md=sha256\n"
            "policy=p\nx509_extensions=e\n[p]\ncommonName=supplied\n[e]\nsubjectAltName=IP:127.0.0.1\n"
        )
    open(folder + "/old.db", "w").close()
    with open(folder + "/old.serial", "w") as f:
        f.write("77\n")
    api.openssl(
        folder,
        "ca",
        "-batch",
        "-config",
        "old.cnf",
        "-cert",
        "ca.crt",
        "-keyfile",
        "ca.key",
        "-in",
        "old.csr",
        "-out",
        "old.crt",
        "-startdate",
        "20200101000000Z",
        "-enddate",
        "20200201000000Z",
        "-notext",
    )
    api.make_ca(folder, "untrusted")
    leaf(folder, "stranger", ca="untrusted")
    for name, what in (("old", "has expired"), ("stranger", "has an untrusted CA")):
        webhook = Webhook(program, folder, kubeconfig, "{}\n")
        webhook.start("--cert", f"{folder}/{name}.crt", "--key", f"{folder}/{name}.key")
        install(webhook, probe=False)
        if name == "old":
            check("expired" in webhook.metrics("/readyz"), "not ready with an expired certificate")
        status, answer, _ = send(server, WITH_SHARE, "team-a")
        check(
            status == 403 and POLICY_DENIAL in answer["message"],
            f"certificate {what}: denied with the reason: {status} {answer}",
        )
        check(send(server, PLAIN, "team-a")[0] == 201, f"certificate {what}: pods without a share start")
        # A valid certificate needs no restart.
        os.replace(folder + "/leaf1.crt", f"{folder}/{name}.crt.new")
        shutil.copy(f"{folder}/{name}.crt.new", folder + "/leaf1.crt")
        shutil.copy(folder + "/leaf1.key", f"{folder}/{name}.key")
        os.replace(f"{folder}/{name}.crt.new", f"{folder}/{name}.crt")
        wait(lambda: send(server, WITH_SHARE, "team-a")[0] == 201, f"certificate that {what} is replaced")
        check(webhook.stop() == 0, "the webhook exits with status 0")


def slow_connections(server, webhook):
    slow = []
    for i in range(500):
        s = socket.create_connection(("127.0.0.1", webhook.port))
        if i % 3 == 0:
            s.send(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a TLS hello
        slow.append(s)
    wait(lambda: webhook.metric("sluice_webhook_connections") > 400, "the slow connections are open")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        status, answer, _ = send(server, WITH_SHARE, "team-a")
        times.append(time.perf_counter() - start)
        if status != 201:
            check(False, f"beside 500 slow connections: {status} {answer}")
            break
    wait(lambda: webhook.metric("sluice_webhook_connections") < 50, "the deadline closes them")
    for s in slow:
        s.close()
    print(f"200 creates beside 500 slow connections: slowest {max(times) * 1000:.0f} ms")


def without_policy(server, program, golden, pairs, folder, kubeconfig, cases, manifests):
    for path in ("validatingadmissionpolicybindings/sluice-handled", "validatingadmissionpolicies/sluice-handled"):
        server.call("DELETE", ADMISSION + path)
    webhook = Webhook(program, folder, kubeconfig, "{}\n")
    webhook.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    put_manifests = manifests(webhook, "--without-policy")
    check(
        not any(m["kind"].startswith("ValidatingAdmissionPolicy") for m in put_manifests),
        "--without-policy makes no policy",
    )
    wait(lambda: send(server, WITH_SHARE, "team-a")[0] == 201, "the API server calls the webhook")
    status, answer, _ = send(server, WITH_SHARE, "kube-system")
    check(
        status == 403 and POLICY_DENIAL in answer["message"],
        f"a namespace that /mutate excludes: {status} {answer.get('message')}",
    )
    count = 0
    for c in cases:
        if len(c["documents"]) != 1 or c["documents"][0].get("kind") != "Pod" or "result" not in c or c["denied"]:
            continue
        if harness.config_of(c) != "{}" or c["nodes"] or c["namespace"] != "team-a" or c["name"] == "mirror":
            continue
        # The API server writes managedFields itself.
        if "managedFields" in c["documents"][0]["metadata"]:
            continue
        status, answer, _ = send(server, c["documents"][0], "team-a")
        check(status == 201, f"{c['name']} without the policy: {status} {json.dumps(answer)[:300]}")
        count += 1
    print(f"{count} golden pods on an API server without the policy")
    check(webhook.stop() == 0, "the webhook exits with status 0")
    # A deleted policy stays in force until the API server notices.
    wait(
        lambda: 'failed calling webhook "handled.sluice.dev"' in str(send(server, WITH_SHARE, "team-a")[1]),
        "the API server has dropped the policy",
    )
    harness.outage(server, cases, False, 'failed calling webhook "handled.sluice.dev"', True)


def main():
    program, golden, pairs = sys.argv[1:4]
    programs = api.skip_without_programs()
    folder = tempfile.mkdtemp(prefix="sluice-faults-")
    for sub in ("away1", "away2", "idle", "replica0", "replica1", "replica2"):
        os.makedirs(f"{folder}/{sub}")
    server = api.ApiServer(folder, programs)
    try:
        server.start()
        leaf(folder, "webhook")
        check(server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})[0] == 201, "namespace")
        runtime_classes(server)
        kubeconfig = webhook_account(server)
        lines = (
            subprocess.run([golden, pairs, "--expect"], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()
        )
        cases = [json.loads(line) for line in lines]

        def manifests(webhook, *extra):
            text = harness.load_manifests(
                program,
                "--config",
                webhook.config_file,
                "--url",
                f"https://127.0.0.1:{webhook.port}",
                "--ca",
                folder + "/ca.crt",
                *extra,
            )
            out = harness.yaml_documents(golden, text, folder + "/manifests")
            harness.put(server, out)
            return out

        def install(webhook, probe=True):
            manifests(webhook)
            time.sleep(1.5)  # for the API server's informers, whose state is not visible
            if probe:
                wait(lambda: send(server, WITH_SHARE, "team-a")[0] == 201, "the API server calls the webhook")

        steps = [
            lambda: unreachable_at_start(server, program, folder, kubeconfig),
            lambda: refused_pods(server, program, folder, kubeconfig),
            lambda: certificates(server, program, folder, kubeconfig, install),
            lambda: reinvocation(server, program, folder, kubeconfig, install),
            lambda: unreadable(server, program, folder, kubeconfig, install),
            lambda: without_policy(server, program, golden, pairs, folder, kubeconfig, cases, manifests),
        ]
        for step in steps:
            start = time.time()
            step()
            print(f"  {time.time() - start:.1f} s")
    finally:
        if harness.failures and os.path.exists(folder + "/webhook.log"):
            print(open(folder + "/webhook.log").read()[-3000:])
        for w in Webhook.running:
            w.process.kill()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"FAILED: {len(harness.failures)}" if harness.failures else "all passed")
    return 1 if harness.failures else 0


if __name__ == "__main__":
    sys.exit(main())
