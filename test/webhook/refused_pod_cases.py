"""Pods that the device plugin refused: one of several replicas removes them. The webhook has the chart's rights."""

import re
import signal
import time

from admission_harness import Webhook, check, wait


def webhook_account(server):
    """A kubeconfig whose user has the rights of the chart's roles, with removeRefused enabled."""
    ns = "sluice-system"
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resourceNames": ["sluice"],
            "verbs": ["get", "update", "patch"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        },
    ]
    own = [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["cert"], "verbs": ["get", "update", "patch"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["webhook"],
            "verbs": ["get", "update"],
        },
    ]
    rbac = "/apis/rbac.authorization.k8s.io/v1/"
    subject = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "webhook"}]
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": ns}}),
        (f"/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "cert"}, "type": "Opaque"}),
        (f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", {"metadata": {"name": "webhook"}}),
        (rbac + "clusterroles", {"metadata": {"name": "webhook"}, "rules": rules}),
        (
            rbac + "clusterrolebindings",
            {
                "metadata": {"name": "webhook"},
                "subjects": subject,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "webhook"},
            },
        ),
        (rbac + f"namespaces/{ns}/roles", {"metadata": {"name": "webhook"}, "rules": own}),
        (
            rbac + f"namespaces/{ns}/rolebindings",
            {
                "metadata": {"name": "webhook"},
                "subjects": subject,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "webhook"},
            },
        ),
    ):
        status, answer, _ = server.call("POST", path, body)
        check(status == 201, f"{path}: {status} {answer}")
    path = server.folder + "/webhook.kubeconfig"
    with open(server.folder + "/kubeconfig") as f:
        admin = f.read()
    with open(path, "w") as f:
        f.write(re.sub(r"users: .*", "users: [{name: admin, user: {token: token-webhook}}]", admin))
    return path


def refused_pods(server, program, folder, kubeconfig):
    """Of three replicas, only the holder of the Lease removes pods, and only refused ones."""
    space = "/api/v1/namespaces/team-a/pods"
    refusal = (
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = sluice refuses: "
        "no GPU of this node has 60 percent free, which is unexpected"
    )

    def make(
        name, owner="ReplicaSet", phase="Failed", reason="UnexpectedAdmissionError", message=refusal, controller=True
    ):
        pod = {
            "metadata": {
                "name": name,
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1" if owner == "Job" else "apps/v1",
                        "kind": owner,
                        "name": "o",
                        "uid": "u-" + owner,
                        "controller": controller,
                    }
                ],
            },
            "spec": {"containers": [{"name": "a", "image": "x"}]},
        }
        check(server.call("POST", space, pod)[0] == 201, "pod " + name)
        status, answer, _ = server.call(
            "PATCH",
            f"{space}/{name}/status",
            {"status": {"phase": phase, "reason": reason, "message": message}},
            "application/merge-patch+json",
        )
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
    # The removal is off by default.
    idle = Webhook(program, folder + "/idle", kubeconfig, "{}\n")
    idle.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    replicas = [Webhook(program, f"{folder}/replica{i}", kubeconfig, config % 0) for i in range(3)]
    time.sleep(3)
    check({"gone-0", "gone-1"} <= names(), "without the setting no pod is removed")
    idle.stop()
    for w in replicas:
        w.start("--cert", folder + "/leaf2.crt", "--key", folder + "/leaf2.key")
    leads = lambda: [w for w in replicas if w.metric("sluice_webhook_leader") == 1]
    wait(lambda: names() == kept, "refused pods are removed")
    # A pod disappears before its removal is counted, and the leader's metric changes after its first poll.
    removed = lambda: [w.metric("sluice_webhook_refused_pods_removed_total") for w in replicas]
    wait(lambda: len(leads()) == 1, "one replica leads")
    wait(
        lambda: sorted(removed()) == [0, 0, 2] and leads()[0].metric("sluice_webhook_refused_pods_removed_total") == 2,
        "the leader alone removes",
    )
    # A burst, as a ReplicaSet causes one.
    for i in range(30):
        make(f"gone-burst-{i}")
    wait(lambda: names() == kept, "a burst of pods is removed", 60)
    wait(lambda: sum(removed()) == 32, "each removal is counted")
    check(sum(removed()) == 32, f"each was removed once: {removed()}")
    # A leader that exits releases the Lease. After a kill, the next leader waits for the Lease's duration.
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
        check(w.stop() == 0, "a replica exits with status 0")
    for n in kept:
        server.call("DELETE", f"{space}/{n}?gracePeriodSeconds=0")
