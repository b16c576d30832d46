"""The node, chart and pods of test/gpu/cluster, as its rows use them."""

import json
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "test" / "cluster"))
import product as p  # noqa: E402

CGROUP = "/sluice-gpu/kubepods/"  # cluster_node's


def node(*command):
    p.run(HERE / "cluster_node", *command)


def run_dir():
    return os.environ["CLUSTER_RUN"] + "/sluice"


def install(workloads, *more, units=True):
    """helm install or upgrade, and, unless `units` is false, units on the node."""
    settings = {
        "image.registry": "sluice.test",
        "image.pullPolicy": "Never",
        "node.runDir": run_dir(),
        "node.hostDir": os.environ["CLUSTER_STATE"] + "/node",
        "driver.access": "own",
        # The allocations of ended pods go at once.
        "devicePlugin.config.collectSeconds": 1,
        "devicePlugin.config.collectGraceSeconds": 2,
        **workloads.values(),
    }
    flags = [x for k, v in settings.items() for x in ("--set", f"{k}={v}")]
    for name in ("cache", "config", "data"):
        os.environ[f"HELM_{name.upper()}_HOME"] = os.environ["CLUSTER_STATE"] + "/helm"
    chart = ROOT / "charts" / "sluice"
    p.run("helm", "upgrade", "--install", "sluice", chart, "-n", p.SPACE, "--wait", "--timeout", "90s", *flags, *more)
    if units:
        p.wait(60, "the node to offer units", lambda: p.offered() >= 100)
    p.kubectl("-n", p.SPACE, "rollout", "status", "daemonset/sluice-node", "--timeout=60s")


def namespace(name, workloads, **labels):
    """With a volume for each of the machine's folders: a restricted namespace allows claims, but no hostPath."""
    p.namespace(name, **labels)
    objects = []
    for key, (host, _) in workloads.volumes().items():
        common = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
        objects += [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{name}-{key}"},
                "spec": {
                    **common,
                    "capacity": {"storage": "1Gi"},
                    "hostPath": {"path": host, "type": "Directory"},
                    "claimRef": {"namespace": name, "name": key},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": key},
                "spec": {
                    **common,
                    "volumeName": f"{name}-{key}",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        ]
    if objects:
        p.apply({"apiVersion": "v1", "kind": "List", "items": objects}, name)


def pod(name, workloads, command, annotations, managed, image="", restricted=False, env=None, **container):
    """A pod whose managed memory the hook itself limits (`managed` bytes): the guard of test/gpu."""
    variables = {**workloads.env(), "SLUICE_MANAGED_LIMIT": str(managed), **(env or {})}
    volumes = workloads.volumes() if not image else {}
    mounts = [{"name": k, "mountPath": inside, "readOnly": True} for k, (_, inside) in volumes.items()]
    claims = [{"name": k, "persistentVolumeClaim": {"claimName": k, "readOnly": True}} for k in volumes]
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "main",
                "image": image or workloads.image,
                "imagePullPolicy": "Never",
                "env": [{"name": k, "value": v} for k, v in variables.items()],
                "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
                **({"command": command} if command else {}),
                **container,
            }
        ],
        "volumes": [*claims, {"name": "tmp", "emptyDir": {}}],
    }
    if restricted:
        spec["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": 12345,
            "runAsGroup": 12345,
            "fsGroup": 12345,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        spec["containers"][0]["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    elif workloads.host_pid:
        spec["hostPID"] = True
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def container_state(name, space):
    status = p.get("-n", space, "pod", name)["status"].get("containerStatuses") or [{}]
    return status[0]


def logs(name, space, *more):
    return p.kubectl("-n", space, "logs", name, *more, check=False)


def messages(name, space):
    """The product's Events of a pod, the last ones first."""
    events = p.get("-n", space, "events", "--field-selector", f"involvedObject.name={name}")["items"]
    ours = [f"{e['reason']}: {e['message']}" for e in events if e["reason"].startswith("Sluice")]
    return "; ".join(reversed(ours[-4:]))


def ended(name, space):
    return p.phase(name, space) in ("Succeeded", "Failed")


def wait_end(name, space, seconds):
    """Listens until the pod has ended or is deleted: asking again and again would take CPU time from it."""
    event = "jsonpath={.type} {.object.status.phase}{'\\n'}"
    watch = ["kubectl", "-n", space, "get", "pod", name, "--watch", "--output-watch-events", "-o", event]
    with subprocess.Popen(
        ["timeout", "-k", "2", str(seconds), *watch], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as listener:
        for line in listener.stdout:
            if {"DELETED", "Succeeded", "Failed"} & set(line.split()):
                listener.terminate()
                return


def processes(program="", pod_uid=""):
    """The processes in this node's pods, by program and pod; other nodes of the machine have other cgroups."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            cgroup = (entry / "cgroup").read_text()
            if CGROUP in cgroup and pod_uid in cgroup and program[:15] in (entry / "comm").read_text():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue  # no process, or one that has just ended
    return found


def uses_cuda(pid):
    """Without the hook: its probe of the driver would count, too."""
    try:
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
        return "libcuda.so" in maps and "libsluice" not in maps
    except OSError:
        return False  # it has just ended


def kill(program):
    found = processes(program)
    if not found:
        raise p.Failed(f"no pod runs {program}")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def status():
    return json.loads(p.in_agent("/usr/bin/sluice", "status", "-o", "json", "--run-dir", run_dir()).stdout)


def allocation(name):
    return next((a for a in status().get("allocations", []) if a.get("pod") == name), None)


def collect(out):
    """What explains a failed row, into a file: objects, events, logs. Nothing here may fail."""

    def show(title, *command):
        out.write(f"\n===== {title}\n")
        try:
            done = subprocess.run(
                [str(c) for c in command], capture_output=True, text=True, timeout=20, errors="replace", check=False
            )
            out.write((done.stdout + done.stderr)[-20000:])
        except (OSError, subprocess.TimeoutExpired) as error:
            out.write(f"{error}\n")

    state = os.environ.get("CLUSTER_STATE", "")
    if os.path.exists(f"{state}/pki/admin.kubeconfig"):
        show("pods", "kubectl", "get", "pods", "-A", "-o", "wide", "--request-timeout=5s")
        show("events", "kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp", "--request-timeout=5s")
        show("pods in full", "kubectl", "describe", "pods", "-A", "--request-timeout=5s")
        show("node", "kubectl", "describe", "nodes", "--request-timeout=5s")
        for part in ("agent", "device-plugin", "install"):
            show(
                part,
                "kubectl",
                "-n",
                p.SPACE,
                "logs",
                "-l",
                "app.kubernetes.io/component=node",
                "-c",
                part,
                "--tail=200",
            )
        show("webhook", "kubectl", "-n", p.SPACE, "logs", "-l", "app.kubernetes.io/component=webhook", "--tail=100")
        show("status", "kubectl", "sluice", "status")
        show("doctor", "kubectl", "sluice", "doctor")
    for log in sorted(pathlib.Path(state, "log").glob("*.log")) if state else []:
        show(log.name, "tail", "-n", "200", log)
