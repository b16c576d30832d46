"""The part of an API server that the agent asks: pods, Events, reviews of tokens and of access. Over plain HTTP.

The real one is in test/agent/kubernetes_test.py, where the control plane's programs are built.
"""

import contextlib
import http.server
import json
import threading


class FakeApi:
    def __init__(self):
        self.pods = []  # the node's
        self.users = {}  # by token: username
        self.allowed = set()  # (username, path)
        self.reviews, self.events, self.deleted = [], [], []
        self.hangs = False  # reviews of tokens get no answer
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, code, body):
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client's time was over
                    self.wfile.write(data)

            def body(self):
                return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

            def do_GET(self):
                if "watch=" in self.path:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    api.stop.wait(60)
                    self.close_connection = True
                    return
                self.answer(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": api.pods})

            def do_POST(self):
                body = self.body()
                if self.path.endswith("/tokenreviews"):
                    api.reviews.append(body["spec"]["token"])
                    while api.hangs and not api.stop.is_set():
                        api.stop.wait(0.1)
                    user = api.users.get(body["spec"]["token"])
                    status = {"authenticated": True, "user": {"username": user, "groups": ["g"]}} if user else {}
                    return self.answer(201, {**body, "status": status})
                if self.path.endswith("/subjectaccessreviews"):
                    spec = body["spec"]
                    assert spec["groups"] == ["g"] and spec["nonResourceAttributes"]["verb"] == "get", spec
                    may = (spec["user"], spec["nonResourceAttributes"]["path"]) in api.allowed
                    return self.answer(201, {**body, "status": {"allowed": may}})
                if self.path.endswith("/events"):
                    api.events.append(body)
                self.answer(201, {**body, "metadata": {**body.get("metadata", {}), "name": "e"}})

            def do_PATCH(self):
                self.answer(200, self.body())

            def do_DELETE(self):
                self.body()
                api.deleted.append(self.path)
                self.answer(200, {"kind": "Status", "status": "Success"})

        self.stop = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def pod(self, name, uid, ns="team", units=0):
        resources = {"limits": {"sluice.dev/gpu-percent": str(units)}} if units else {}
        self.pods.append(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": ns, "uid": uid},
                "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i", "resources": resources}]},
                "status": {"phase": "Running"},
            }
        )

    def kubeconfig(self, path):
        server = f"http://127.0.0.1:{self.server.server_address[1]}"
        path.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )

    def reasons(self, pod):
        return [e["reason"] for e in self.events if e["involvedObject"]["name"] == pod]

    def close(self):
        self.stop.set()
        self.server.shutdown()
