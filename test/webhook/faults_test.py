#!/usr/bin/env python3
"""What goes wrong around the webhook, against a real API server: faults_test.py SLUICE_WEBHOOK GOLDEN_PROGRAM GOLDEN_FOLDER

API server away at the start; certificates rotated under load, broken, expired; 500 slow connections; servers without
ValidatingAdmissionPolicy; a second webhook that adds containers after ours; refused pods removed by one leader of several."""
import base64
import copy
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import admission_test as chain
import apiserver as api
from admission_test import ADMISSION, RESOURCE, Webhook, check, send, wait

POLICY = "has not handled it"
ASKS = {"metadata": {"annotations": {"sluice.dev/gpu-fraction": "0.5"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}}
PLAIN = {"metadata": {}, "spec": {"containers": [{"name": "a", "image": "x"}]}}
LIBRARY = "/opt/sluice/lib/libsluice.so"


def preload(container):
    return [e["value"] for e in container.get("env", []) if e["name"] == "LD_PRELOAD"]


# ---- rights: the webhook runs with these and no others

def webhook_account(server):
    """A kubeconfig whose user may do what the chart's roles allow, with refused pods removed."""
    ns = "sluice-system"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
             {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
             {"apiGroups": ["admissionregistration.k8s.io"], "resourceNames": ["sluice"], "verbs": ["get", "update", "patch"],
              "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]}]
    own = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["cert"], "verbs": ["get", "update", "patch"]},
           {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["webhook"], "verbs": ["get", "update"]}]
    rbac = "/apis/rbac.authorization.k8s.io/v1/"
    subject = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "webhook"}]
    for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": ns}}),
            (f"/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "cert"}, "type": "Opaque"}),
            (f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", {"metadata": {"name": "webhook"}}),
            (rbac + "clusterroles", {"metadata": {"name": "webhook"}, "rules": rules}),
            (rbac + "clusterrolebindings", {"metadata": {"name": "webhook"}, "subjects": subject, "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "webhook"}}),
            (rbac + f"namespaces/{ns}/roles", {"metadata": {"name": "webhook"}, "rules": own}),
            (rbac + f"namespaces/{ns}/rolebindings", {"metadata": {"name": "webhook"}, "subjects": subject, "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "webhook"}})):
        status, answer, _ = server.call("POST", path, body)
        check(status == 201, f"{path}: {status} {answer}")
    path = server.folder + "/webhook.kubeconfig"
    with open(server.folder + "/kubeconfig") as f:
        admin = f.read()
    with open(path, "w") as f:
        f.write(re.sub(r"users: .*", "users: [{name: admin, user: {token: token-webhook}}]", admin))
    return path


# ---- the cases

def away_at_start(server, program, folder, kubeconfig):
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGKILL)
    server.processes["kube-apiserver"].wait()
    made = Webhook(program, folder + "/away1", kubeconfig, "selfSigned: {secretNamespace: sluice-system, secretName: cert, "
                   "service: webhook, mutating: [], validating: []}\n")
    given = Webhook(program, folder + "/away2", kubeconfig, "assumedGpuMemory: 20Gi\n")
    made.start()
    given.start("--cert", folder + "/webhook.crt", "--key", folder + "/webhook.key")
    check(made.metrics("/healthz") == "ok\n", "alive without an API server")
    check("no certificate yet" in made.metrics("/readyz"), "not ready without a certificate: " + made.metrics("/readyz"))
    check(given.metrics("/readyz") == "ok\n", "ready with a given certificate and no API server")
    memory = copy.deepcopy(ASKS)
    memory["metadata"]["annotations"] = {"sluice.dev/gpu-memory": "10Gi"}
    answer = ask(given, folder, memory)
    check(answer["response"]["allowed"] and "patch" in answer["response"], f"decides without an API server: {answer}")
    server.spawn("kube-apiserver")
    server.wait()
    wait(lambda: made.metrics("/readyz") == "ok\n", "the certificate is made once the API server is there", 60)
    status, _, _ = server.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1", "annotations": {
        "sluice.dev/gpus": '[{"uuid":"GPU-0","model":"L4","memory":24696061952}]'}}})
    check(status == 201, "node")
    wait(lambda: given.metric("sluice_webhook_gpu_nodes") == 1, "nodes are watched once the API server is there", 60)
    server.call("DELETE", "/api/v1/nodes/n1")
    # And an end while the API server is away is quick.
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGSTOP)  # takes connections, answers nothing
    time.sleep(2)
    for w in (made, given):
        start = time.time()
        check(w.stop() == 0 and time.time() - start < 12, f"ends while the API server hangs: {time.time() - start:.1f} s")
    os.killpg(server.processes["kube-apiserver"].pid, signal.SIGCONT)
    server.wait()


def ask(webhook, folder, pod, timeout=10):
    """One review, past the API server."""
    context = ssl.create_default_context(cafile=folder + "/ca.crt")
    import http.client
    c = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=context, timeout=timeout)
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "team-a", "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": pod}}
    c.request("POST", "/mutate", json.dumps(review), {"Content-Type": "application/json"})
    return json.loads(c.getresponse().read())


def place(folder, version, certificate, key):
    """As kubelet changes a projected volume: a new folder, and a symlink renamed over the old."""
    new = f"{folder}/..{version}"
    os.makedirs(new)
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        with open(f"{new}/{name}", "wb") as f:
            f.write(content)
    os.symlink(f"..{version}", folder + "/..new")
    os.rename(folder + "/..new", folder + "/..data")


def read(path):
    with open(path, "rb") as f:
        return f.read()


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

    # Rotated under load: every create is handled. New connections all the while, so that every handshake is met too.
    stop, bad, count = threading.Event(), [], [0]

    def creates():
        connection = server.connection()
        while not stop.is_set():
            status, answer, _ = send(server, ASKS, "team-a", connection)
            count[0] += 1
            if status != 201 or "sluice.dev/injected" not in answer["metadata"]["annotations"]:
                bad.append((status, json.dumps(answer)[:300]))

    def connects():
        while not stop.is_set():
            try:
                if not ask(webhook, folder, ASKS)["response"]["allowed"]:
                    bad.append("denied past the API server")
                count[0] += 1
            except OSError as e:
                bad.append(f"past the API server: {e}")

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
    check(not bad, f"{len(bad)} of {count[0]} requests failed while certificates rotated: {bad[:3]}")
    print(f"{count[0]} requests through 6 rotations, {len(bad)} failed")

    # Broken files: what is in use stays in use.
    for name, crt, key in (("half", two[0][:300], two[1]), ("of another key", two[0], one[1]), ("empty", b"", b"")):
        faults = webhook.metric('sluice_webhook_reloads_total{result="bad",what="certificate"}')
        place(tls, name.replace(" ", ""), crt, key)
        wait(lambda f=faults: webhook.metric('sluice_webhook_reloads_total{result="bad",what="certificate"}') > f, name + " is noticed")
        check(send(server, ASKS, "team-a")[0] == 201, f"a certificate file that is {name} changes nothing")
    os.remove(tls + "/..data")
    time.sleep(1.5)
    check(send(server, ASKS, "team-a")[0] == 201 and webhook.metrics("/readyz") == "ok\n", "removed certificate files change nothing")
    slowloris(server, webhook)
    check(webhook.stop() == 0, "the webhook ends well")

    # Started with one that has expired, or of an authority that nobody trusts: as if the webhook were down.
    api.openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=old", "-keyout",
                "old.key", "-out", "old.csr")
    with open(folder + "/old.cnf", "w") as f:
        f.write("[ca]\ndefault_ca=d\n[d]\ndatabase=old.db\nserial=old.serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
                "x509_extensions=e\n[p]\ncommonName=supplied\n[e]\nsubjectAltName=IP:127.0.0.1\n")
    open(folder + "/old.db", "w").close()
    with open(folder + "/old.serial", "w") as f:
        f.write("77\n")
    api.openssl(folder, "ca", "-batch", "-config", "old.cnf", "-cert", "ca.crt", "-keyfile", "ca.key", "-in", "old.csr", "-out",
                "old.crt", "-startdate", "20200101000000Z", "-enddate", "20200201000000Z", "-notext")
    api.make_ca(folder, "foreign")
    leaf(folder, "stranger", ca="foreign")
    for name, what in (("old", "has expired"), ("stranger", "is of a foreign authority")):
        webhook = Webhook(program, folder, kubeconfig, "{}\n")
        webhook.start("--cert", f"{folder}/{name}.crt", "--key", f"{folder}/{name}.key")
        install(webhook, probe=False)
        if name == "old":
            check("expired" in webhook.metrics("/readyz"), "not ready with a certificate that has expired")
        status, answer, _ = send(server, ASKS, "team-a")
        check(status == 403 and POLICY in answer["message"], f"certificate {what}: refused with the reason: {status} {answer}")
        check(send(server, PLAIN, "team-a")[0] == 201, f"certificate {what}: pods that do not concern us start")
        # Made good: no restart.
        os.replace(folder + "/leaf1.crt", f"{folder}/{name}.crt.new")
        shutil.copy(f"{folder}/{name}.crt.new", folder + "/leaf1.crt")
        shutil.copy(folder + "/leaf1.key", f"{folder}/{name}.key")
        os.replace(f"{folder}/{name}.crt.new", f"{folder}/{name}.crt")
        wait(lambda: send(server, ASKS, "team-a")[0] == 201, f"certificate that {what}, replaced")
        check(webhook.stop() == 0, "the webhook ends well")


def slowloris(server, webhook):
    slow = []
    for i in range(500):
        s = socket.create_connection(("127.0.0.1", webhook.port))
        if i % 3 == 0:
            s.send(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a TLS hello
        slow.append(s)
    wait(lambda: webhook.metric("sluice_webhook_connections") > 400, "the slow connections are there")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        status, answer, _ = send(server, ASKS, "team-a")
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
    check(not any(m["kind"].startswith("ValidatingAdmissionPolicy") for m in put_manifests), "--without-policy makes no policy")
    wait(lambda: send(server, ASKS, "team-a")[0] == 201, "the webhook is asked")
    status, answer, _ = send(server, ASKS, "kube-system")
    check(status == 403 and POLICY in answer["message"], f"a namespace that /mutate leaves alone: {status} {answer.get('message')}")
    count = 0
    for c in cases:
        if len(c["documents"]) != 1 or c["documents"][0].get("kind") != "Pod" or "result" not in c or c["denied"]:
            continue
        if chain.config_of(c) != "{}" or c["nodes"] or c["namespace"] != "team-a" or c["name"] == "mirror":
            continue
        status, answer, _ = send(server, c["documents"][0], "team-a")
        check(status == 201, f"{c['name']} without the policy: {status} {json.dumps(answer)[:300]}")
        count += 1
    print(f"{count} golden pods on a server without the policy")
    check(webhook.stop() == 0, "the webhook ends well")
    # A deleted policy is still in force until the API server has looked again.
    wait(lambda: 'failed calling webhook "handled.sluice.dev"' in str(send(server, ASKS, "team-a")[1]), "the policy is gone")
    chain.outage(server, cases, False, 'failed calling webhook "handled.sluice.dev"', True)


class Mesh(http.server.BaseHTTPRequestHandler):
    """Another project's webhook, asked after ours: adds what the pod's label says."""
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod = review["request"]["object"]
        what = pod["metadata"].get("labels", {}).get("mesh")
        names = [c["name"] for c in pod["spec"]["containers"]]
        patch = []
        if what == "front" and "unknown-proxy" not in names:
            patch = [{"op": "add", "path": "/spec/containers/0", "value": {"name": "unknown-proxy", "image": "proxy"}},
                     {"op": "add", "path": "/spec/initContainers", "value": [{"name": "init", "image": "proxy"}]}]
        if what == "asks" and "late" not in names:
            patch = [{"op": "add", "path": "/spec/containers/-", "value": {
                "name": "late", "image": "cuda", "resources": {"limits": {RESOURCE: "20"}, "requests": {RESOURCE: "20"}}}}]
        if what == "preload" and not any("other.so" in v for v in preload(pod["spec"]["containers"][0])):
            env = pod["spec"]["containers"][0]["env"]
            i = next(i for i, e in enumerate(env) if e["name"] == "LD_PRELOAD")
            patch = [{"op": "replace", "path": f"/spec/containers/0/env/{i}/value", "value": "/other.so:" + env[i]["value"]}]
        if what == "scheduler" and pod["spec"].get("schedulerName") != "volcano":
            patch = [{"op": "replace", "path": "/spec/schedulerName", "value": "volcano"}]
        Mesh.asked += 1
        response = {"uid": review["request"]["uid"], "allowed": True}
        if patch:
            response.update(patchType="JSONPatch", patch=base64.b64encode(json.dumps(patch).encode()).decode())
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def reinvocation(server, program, folder, kubeconfig, install):
    webhook = Webhook(program, folder, kubeconfig, "schedulerName: sluice-scheduler\n")
    webhook.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    install(webhook)
    mesh = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mesh)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder + "/leaf2.crt", folder + "/leaf2.key")
    mesh.socket = context.wrap_socket(mesh.socket, server_side=True)
    threading.Thread(target=mesh.serve_forever, daemon=True).start()
    chain.put(server, [{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                        "metadata": {"name": "zz-mesh"}, "webhooks": [{
                            "name": "mesh.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                            "reinvocationPolicy": "IfNeeded", "objectSelector": {"matchExpressions": [{"key": "mesh", "operator": "Exists"}]},
                            "clientConfig": {"url": f"https://127.0.0.1:{mesh.server_port}/", "caBundle": base64.b64encode(
                                read(folder + "/ca.crt")).decode()},
                            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}]}])

    def pod(label):
        p = copy.deepcopy(ASKS)
        p["metadata"]["labels"] = {"mesh": label}
        if label == "asks":  # by name: the pod's own annotation would mean the newcomer too, and contradict what it asks for
            p["metadata"]["annotations"] = {"gpu-fraction.sluice.dev/a": "0.5"}
        return p

    wait(lambda: send(server, pod("none"), "team-a")[0] == 201 and Mesh.asked > 0, "the second webhook is asked")
    requests = 'sluice_webhook_requests_total{outcome="%s",path="/mutate"}'

    def create(label):
        before = sum(webhook.metric(requests % o) for o in ("patched", "nothing"))
        status, answer, _ = send(server, pod(label), "team-a")
        check(status == 201, f"mesh {label}: {status} {answer}")
        calls = sum(webhook.metric(requests % o) for o in ("patched", "nothing")) - before
        check(calls == 2, f"mesh {label}: asked twice, not {calls} times")
        return answer, {c["name"]: c for c in answer["spec"]["containers"]}

    # A proxy of a name that we do not know, put first: the container that was meant keeps its share, the proxy gets none.
    answer, containers = create("front")
    check(list(containers) == ["unknown-proxy", "a"] and preload(containers["a"]) == [LIBRARY], f"front: {containers}")
    check(not preload(containers["unknown-proxy"]) and RESOURCE not in containers["unknown-proxy"].get("resources", {}).get("limits", {}),
          f"front: the proxy has no share: {containers['unknown-proxy']}")
    check(answer["spec"]["schedulerName"] == "sluice-scheduler", "front: the scheduler that the configuration names")
    # A container that asks for the resource and comes after us: handled by the second pass, or the policy would refuse it.
    answer, containers = create("asks")
    check(preload(containers["late"]) == [LIBRARY] and preload(containers["a"]) == [LIBRARY], f"asks: {containers}")
    marker = json.loads(answer["metadata"]["annotations"]["sluice.dev/injected"])["containers"]
    check(marker.get("late", {}).get("percent") == 20, f"asks: the marker knows it: {marker}")
    # Somebody else's library put before ours: ours comes first again.
    _, containers = create("preload")
    check(preload(containers["a"])[0].startswith(LIBRARY + ":") and "/other.so" in preload(containers["a"])[0], f"preload: {containers['a']}")
    # Another scheduler chosen after us: it stays.
    answer, _ = create("scheduler")
    check(answer["spec"]["schedulerName"] == "volcano", "scheduler: another's choice stays")
    for p, wanted in ((PLAIN, "default-scheduler"), (ASKS, "sluice-scheduler")):
        check(send(server, p, "team-a")[1]["spec"]["schedulerName"] == wanted, "scheduler: " + wanted)
    webhook.write("{}\n")
    wait(lambda: send(server, ASKS, "team-a")[1]["spec"]["schedulerName"] == "default-scheduler", "the scheduler's setting is taken live")
    server.call("DELETE", ADMISSION + "mutatingwebhookconfigurations/zz-mesh")
    mesh.shutdown()
    check(webhook.stop() == 0, "the webhook ends well")


def refused_pods(server, program, folder, kubeconfig):
    """Three replicas; only the holder of the Lease removes, only what it may."""
    space = "/api/v1/namespaces/team-a/pods"
    ours = ("Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = sluice refuses: no GPU of this node has 60 "
            "percent free, which is unexpected")

    def make(name, owner="ReplicaSet", phase="Failed", reason="UnexpectedAdmissionError", message=ours, controller=True):
        pod = {"metadata": {"name": name, "ownerReferences": [{"apiVersion": "batch/v1" if owner == "Job" else "apps/v1", "kind": owner,
                                                               "name": "o", "uid": "u-" + owner, "controller": controller}]},
               "spec": {"containers": [{"name": "a", "image": "x"}]}}
        check(server.call("POST", space, pod)[0] == 201, "pod " + name)
        status, answer, _ = server.call("PATCH", f"{space}/{name}/status", {"status": {"phase": phase, "reason": reason, "message": message}},
                                        "application/merge-patch+json")
        check(status == 200, f"status of {name}: {status} {answer}")

    def names():
        return {p["metadata"]["name"] for p in server.call("GET", space)[1]["items"]}

    make("keep-job", owner="Job")
    make("keep-other-message", message="Pod was rejected: Allocate failed: nvidia")
    make("keep-other-reason", reason="Evicted")
    make("keep-running", phase="Running")
    make("keep-no-controller", controller=False)
    make("gone-0")
    make("gone-1")
    kept = {n for n in names() if not n.startswith("gone-")}
    config = "removeRefused: {namespace: sluice-system, lease: webhook, afterSeconds: %d}\nwatchNodes: false\n"
    # Off by default.
    idle = Webhook(program, folder + "/idle", kubeconfig, "{}\n")
    idle.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    replicas = [Webhook(program, f"{folder}/replica{i}", kubeconfig, config % 0) for i in range(3)]
    time.sleep(3)
    check({"gone-0", "gone-1"} <= names(), "without the setting nothing is removed")
    idle.stop()
    for w in replicas:
        w.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    leads = lambda: [w for w in replicas if w.metric("sluice_webhook_leader") == 1]  # noqa: E731
    wait(lambda: names() == kept, "refused pods are removed")
    # A pod has gone before its removal is counted, and the leader says that it leads when it has looked.
    removed = lambda: [w.metric("sluice_webhook_refused_pods_removed_total") for w in replicas]  # noqa: E731
    wait(lambda: len(leads()) == 1, "one replica leads")
    wait(lambda: sorted(removed()) == [0, 0, 2] and leads()[0].metric("sluice_webhook_refused_pods_removed_total") == 2, "the leader alone removes")
    # A storm, as a ReplicaSet makes one.
    for i in range(30):
        make(f"gone-storm-{i}")
    wait(lambda: names() == kept, "a storm's pods are removed", 60)
    wait(lambda: sum(removed()) == 32, "each is counted")
    check(sum(removed()) == 32, f"each was removed once: {removed()}")
    # The leader ends: it gives the Lease up. It dies: the next waits for the Lease's duration.
    for how, limit in ((signal.SIGTERM, 14), (signal.SIGKILL, 40)):
        leader = leads()[0]
        start = time.time()
        leader.process.send_signal(how)
        leader.process.wait(20)
        replicas.remove(leader)
        make(f"gone-{int(how)}")
        wait(lambda: names() == kept, f"another replica leads after {how.name}", limit)
        print(f"another replica removes refused pods {time.time() - start:.1f} s after the leader's {how.name}")
        wait(lambda: len(leads()) == 1, "one leads")
    for w in replicas:
        check(w.stop() == 0, "a replica ends well")
    for n in kept:
        server.call("DELETE", f"{space}/{n}?gracePeriodSeconds=0")


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
        for name in ("nvidia", "nvidia-legacy", "nvidia-cdi"):
            server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": name})
        kubeconfig = webhook_account(server)
        lines = subprocess.run([golden, pairs, "--expect"], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()
        cases = [json.loads(line) for line in lines]

        def manifests(webhook, *extra):
            text = chain.load_manifests(program, "--config", webhook.config_file, "--url", f"https://127.0.0.1:{webhook.port}", "--ca",
                                        folder + "/ca.crt", *extra)
            out = chain.yaml_documents(golden, text, folder + "/manifests")
            chain.put(server, out)
            return out

        def install(webhook, probe=True):
            manifests(webhook)
            time.sleep(1.5)  # the API server's informers; there is nothing to ask them
            if probe:
                wait(lambda: send(server, ASKS, "team-a")[0] == 201, "the webhook is asked")

        steps = [lambda: away_at_start(server, program, folder, kubeconfig),
                 lambda: refused_pods(server, program, folder, kubeconfig),
                 lambda: certificates(server, program, folder, kubeconfig, install),
                 lambda: reinvocation(server, program, folder, kubeconfig, install),
                 lambda: without_policy(server, program, golden, pairs, folder, kubeconfig, cases, manifests)]
        for step in steps:
            start = time.time()
            step()
            print(f"  {time.time() - start:.1f} s")
    finally:
        if chain.failures and os.path.exists(folder + "/webhook.log"):
            print(open(folder + "/webhook.log").read()[-3000:])
        for w in Webhook.running:
            w.process.kill()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print("FAILED: %d" % len(chain.failures) if chain.failures else "all as it should be")
    return 1 if chain.failures else 0


if __name__ == "__main__":
    sys.exit(main())
