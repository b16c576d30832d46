"""Certificates that the webhook makes itself; admission_test.py runs these cases."""

import base64
import os
import subprocess

from admission_harness import ADMISSION, Webhook, check, wait


def self_signed(server, program, folder, golden):
    """Two replicas share one empty Secret: they agree on one CA, and its certificate verifies."""
    ns = "sluice-system"
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": ns}})
    server.call("POST", f"/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "cert"}, "type": "Opaque"})
    config = (
        "selfSigned: {secretNamespace: sluice-system, secretName: cert, service: webhook, mutating: [sluice], "
        "validating: [sluice]}\n"
    )
    replicas = []
    for i in range(2):
        os.makedirs(f"{folder}/r{i}")
        w = Webhook(program, f"{folder}/r{i}", server.folder + "/kubeconfig", config)
        w.start()
        replicas.append(w)
    for w in replicas:
        wait(lambda w=w: w.metrics("/readyz") == "ok\n", "a replica has its certificate")
    _, secret, _ = server.call("GET", f"/api/v1/namespaces/{ns}/secrets/cert")
    data = {k: base64.b64decode(v) for k, v in secret["data"].items()}
    ca = folder + "/made-ca.crt"
    open(ca, "wb").write(data["ca.crt"])
    for w in replicas:
        shown = subprocess.run(
            [
                "openssl",
                "s_client",
                "-connect",
                f"127.0.0.1:{w.port}",
                "-CAfile",
                ca,
                "-verify_return_error",
                "-verify_hostname",
                "webhook.sluice-system.svc",
            ],
            input=b"",
            capture_output=True,
        )
        check(
            b"Verify return code: 0 (ok)" in shown.stdout,
            "the self-made certificate verifies: " + shown.stdout.decode()[-400:],
        )
    _, hook, _ = server.call("GET", ADMISSION + "mutatingwebhookconfigurations/sluice")
    check(
        base64.b64decode(hook["webhooks"][0]["clientConfig"].get("caBundle", "")) == data["ca.crt"],
        "caBundle is the CA",
    )
    for w in replicas:
        check(w.stop() == 0, "a replica exits with status 0")
