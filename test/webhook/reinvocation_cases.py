"""Another project's webhook runs after sluice's and changes the pod: the API server must ask sluice again."""

import base64
import copy
import http.server
import json
import ssl
import threading

from admission_harness import ADMISSION, PLAIN, RESOURCE, WITH_SHARE, Webhook, check, put, read, send, wait

LIBRARY = "/opt/sluice/lib/libsluice.so"


def preload(container):
    return [e["value"] for e in container.get("env", []) if e["name"] == "LD_PRELOAD"]


class MeshWebhook(http.server.BaseHTTPRequestHandler):
    """Another project's webhook, which runs after sluice's. The pod's label chooses the change."""

    protocol_version = "HTTP/1.1"
    calls = 0

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod = review["request"]["object"]
        labels = pod["metadata"].get("labels", {})
        change = labels.get("mesh") or labels.get("early-mesh")
        names = [c["name"] for c in pod["spec"]["containers"]]
        patch = []
        if change == "proxy-first" and "unknown-proxy" not in names:
            patch = [
                {"op": "add", "path": "/spec/containers/0", "value": {"name": "unknown-proxy", "image": "proxy"}},
                {"op": "add", "path": "/spec/initContainers", "value": [{"name": "init", "image": "proxy"}]},
            ]
        if change == "container-before" and "unknown-proxy" not in names:
            proxy = {"name": "unknown-proxy", "image": "proxy"}
            patch = [{"op": "add", "path": "/spec/containers/0", "value": proxy}]
        if change == "late-container" and "late" not in names:
            patch = [
                {
                    "op": "add",
                    "path": "/spec/containers/-",
                    "value": {
                        "name": "late",
                        "image": "cuda",
                        "resources": {"limits": {RESOURCE: "20"}, "requests": {RESOURCE: "20"}},
                    },
                }
            ]
        if change == "preload" and not any("other.so" in v for v in preload(pod["spec"]["containers"][0])):
            env = pod["spec"]["containers"][0]["env"]
            i = next(i for i, e in enumerate(env) if e["name"] == "LD_PRELOAD")
            patch = [
                {"op": "replace", "path": f"/spec/containers/0/env/{i}/value", "value": "/other.so:" + env[i]["value"]}
            ]
        if change == "scheduler" and pod["spec"].get("schedulerName") != "volcano":
            patch = [{"op": "replace", "path": "/spec/schedulerName", "value": "volcano"}]
        MeshWebhook.calls += 1
        response = {"uid": review["request"]["uid"], "allowed": True}
        if patch:
            response.update(patchType="JSONPatch", patch=base64.b64encode(json.dumps(patch).encode()).decode())
        body = json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        ).encode()
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
    mesh = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MeshWebhook)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder + "/leaf2.crt", folder + "/leaf2.key")
    mesh.socket = context.wrap_socket(mesh.socket, server_side=True)
    threading.Thread(target=mesh.serve_forever, daemon=True).start()
    # The API server calls webhooks in the order of their configurations' names.
    put(
        server,
        [
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": name},
                "webhooks": [
                    {
                        "name": "mesh.example.org",
                        "admissionReviewVersions": ["v1"],
                        "sideEffects": "None",
                        "failurePolicy": "Fail",
                        "reinvocationPolicy": "IfNeeded",
                        "objectSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
                        "clientConfig": {
                            "url": f"https://127.0.0.1:{mesh.server_port}/",
                            "caBundle": base64.b64encode(read(folder + "/ca.crt")).decode(),
                        },
                        "rules": [
                            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
                        ],
                    }
                ],
            }
            for name, label in (("aa-mesh", "early-mesh"), ("zz-mesh", "mesh"))
        ],
    )

    def pod(label):
        p = copy.deepcopy(WITH_SHARE)
        p["metadata"]["labels"] = {"mesh": label}
        if (
            label == "late-container"
        ):  # by name: the pod's annotation would also apply to the new container, and contradict its request
            p["metadata"]["annotations"] = {"gpu-fraction.sluice.dev/a": "0.5"}
        return p

    wait(
        lambda: send(server, pod("none"), "team-a")[0] == 201 and MeshWebhook.calls > 0,
        "the API server calls the second webhook",
    )
    requests = 'sluice_webhook_requests_total{outcome="%s",path="/mutate"}'

    def create(label):
        before = sum(webhook.metric(requests % o) for o in ("patched", "nothing"))
        status, answer, _ = send(server, pod(label), "team-a")
        check(status == 201, f"mesh {label}: {status} {answer}")
        calls = sum(webhook.metric(requests % o) for o in ("patched", "nothing")) - before
        check(calls == 2, f"mesh {label}: expected 2 calls, got {calls}")
        return answer, {c["name"]: c for c in answer["spec"]["containers"]}

    # An unknown proxy that came before sluice's first call, at which the pod has two containers already.
    early = copy.deepcopy(WITH_SHARE)
    early["metadata"]["labels"] = {"early-mesh": "container-before"}
    wait(
        lambda: (
            send(server, early, "team-a")[1].get("spec", {}).get("containers", [{}])[0].get("name") == "unknown-proxy"
        ),
        "the API server calls the webhook that comes first",
    )
    status, answer, _ = send(server, early, "team-a")
    containers = {c["name"]: c for c in answer["spec"]["containers"]} if status == 201 else {}
    check(
        list(containers) == ["unknown-proxy", "a"]
        and preload(containers["a"]) == [LIBRARY]
        and not preload(containers["unknown-proxy"]),
        f"container-before: {status} {answer}",
    )
    # An unknown proxy as the first container: the annotated container keeps its share, and the proxy gets none.
    answer, containers = create("proxy-first")
    check(
        list(containers) == ["unknown-proxy", "a"] and preload(containers["a"]) == [LIBRARY],
        f"proxy-first: {containers}",
    )
    check(
        not preload(containers["unknown-proxy"])
        and RESOURCE not in containers["unknown-proxy"].get("resources", {}).get("limits", {}),
        f"proxy-first: the proxy has no share: {containers['unknown-proxy']}",
    )
    check(answer["spec"]["schedulerName"] == "sluice-scheduler", "proxy-first: the configured scheduler")
    # A later container that requests the resource: the second call must handle it, or the policy would deny the pod.
    answer, containers = create("late-container")
    check(
        preload(containers["late"]) == [LIBRARY] and preload(containers["a"]) == [LIBRARY],
        f"late-container: {containers}",
    )
    marker = json.loads(answer["metadata"]["annotations"]["sluice.dev/injected"])["containers"]
    check(marker.get("late", {}).get("percent") == 20, f"late-container: the marker names it: {marker}")
    # Another library before sluice's: the second call puts sluice's first again.
    _, containers = create("preload")
    check(
        preload(containers["a"])[0].startswith(LIBRARY + ":") and "/other.so" in preload(containers["a"])[0],
        f"preload: {containers['a']}",
    )
    # Another webhook's scheduler stays.
    answer, _ = create("scheduler")
    check(answer["spec"]["schedulerName"] == "volcano", "scheduler: the other webhook's choice stays")
    for p, wanted in ((PLAIN, "default-scheduler"), (WITH_SHARE, "sluice-scheduler")):
        check(send(server, p, "team-a")[1]["spec"]["schedulerName"] == wanted, "scheduler: " + wanted)
    webhook.write("{}\n")
    wait(
        lambda: send(server, WITH_SHARE, "team-a")[1]["spec"]["schedulerName"] == "default-scheduler",
        "a changed schedulerName needs no restart",
    )
    for name in ("aa-mesh", "zz-mesh"):
        server.call("DELETE", ADMISSION + "mutatingwebhookconfigurations/" + name)
    mesh.shutdown()
    check(webhook.stop() == 0, "the webhook exits with status 0")
