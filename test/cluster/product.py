"""sluice on the local cluster: how test and demo build, install and use it."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "test" / "lib"))
from harness import SKIP, Failed, wait_for  # noqa: E402

BUILD = pathlib.Path(os.environ.get("SLUICE_BUILD_DIR", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
CLUSTER = HERE / "cluster"
SPACE = "sluice-system"
VERSION = (ROOT / "VERSION").read_text().strip()


def local(value):
    """The manifest for a node without a registry: every image is the local Debian, which sleeps."""
    if isinstance(value, list):
        return [local(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {k: local(v) for k, v in value.items()}
    if "image" in out:
        out.update(image=os.environ["CLUSTER_BASE"], imagePullPolicy="Never", command=["sleep", "1000000"])
        out.pop("args", None)
    if "containers" in out:
        out["terminationGracePeriodSeconds"] = 0
    return out


def run(*command, check=True, text=None, timeout=600):
    result = subprocess.run(
        [str(c) for c in command],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check and result.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def environment():
    """KUBECONFIG, PATH and the CLUSTER_* names of `cluster env`, for this process."""
    out = run("bash", "-c", f'eval "$("{CLUSTER}" env)"; env -0').stdout
    os.environ.update(e.split("=", 1) for e in out.split("\0") if "=" in e)


def require():
    """Ends the test program with the skip status where no cluster runs."""
    result = run(CLUSTER, "require", check=False)
    if result.returncode:
        sys.stderr.write(result.stderr)
        sys.exit(result.returncode)
    missing = [
        p
        for p in (
            *("sluice", "sluice-agent", "sluice-device-plugin", "sluice-dra-driver", "sluice-webhook"),
            *("sluice-replay", "sluice-trace"),
        )
        if not (BUILD / "bin" / p).exists()
    ]
    if missing:
        print(f"SKIPPED: {BUILD}/bin lacks {', '.join(missing)}; build everything first", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") == "true" else SKIP)
    environment()


def kubectl(*arguments, **more):
    return run("kubectl", *arguments, **more).stdout


def get(*arguments):
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def apply(manifest, space="default", check=True):
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    return run("kubectl", "-n", space, "apply", "-f", "-", text=text, check=check)


def wait(seconds, what, condition):
    return wait_for(what, condition, seconds, pause=0.1)


def images(trace=ROOT / "experiments/traces/transformer.sltrace"):
    """Loads three images into the node: sluice's, a Debian, and a user's training image without any file of sluice.

    The training image plays a recorded training with 5.8 GiB live.
    """
    folder = pathlib.Path(os.environ["CLUSTER_STATE"]) / "images"
    folder.mkdir(exist_ok=True)
    run(ROOT / "scripts" / "image", "--built", BUILD, "--name", f"sluice.test/sluice:{VERSION}", folder / "sluice.tar")
    run(HERE / "workload_image", BUILD, trace, folder / "workload.tar")
    run(CLUSTER, "load", folder / "sluice.tar", folder / "workload.tar")
    run(CLUSTER, "base")
    return folder


def other_image(folder):
    """The same programs with another build of the hook library: its folder on the host has another name."""
    build = folder / "other-build"
    shutil.rmtree(build, ignore_errors=True)
    (build / "lib").mkdir(parents=True)
    (build / "bin").symlink_to(BUILD / "bin")
    for path in (BUILD / "lib").iterdir():
        (build / "lib" / path.name).symlink_to(path)
    for name in ("libsluice.so", "libsluice_engine.so"):
        (build / "lib" / name).unlink()
        (build / "lib" / name).write_bytes((BUILD / "lib" / name).read_bytes() + b"another build")
    run(ROOT / "scripts" / "image", "--built", build, "--name", "sluice.test/sluice:other", folder / "other.tar")
    run(CLUSTER, "load", folder / "other.tar")


def scheduler_image():
    """The cluster's own kube-scheduler as an image, as a registry would hold it under the cluster's version."""
    version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    program = run("bash", "-c", "command -v kube-scheduler").stdout.strip()
    out = pathlib.Path(os.environ["CLUSTER_STATE"]) / "images" / "kube-scheduler.tar"
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root) / "usr/bin"
        folder.mkdir(parents=True)
        run("cp", program, folder / "kube-scheduler")
        run(HERE / "oci_archive", f"sluice.test/kube-scheduler:{version}", root, out, "/usr/bin/kube-scheduler")
    run(CLUSTER, "load", out)


def values(**more):
    gpu, state = os.environ["CLUSTER_GPU"], os.environ["CLUSTER_STATE"]
    settings = {
        "image.registry": "sluice.test",
        "image.pullPolicy": "Never",
        # Nothing outside the cluster's own folders, so that `down` takes all of it away.
        "node.hostDir": f"{state}/node/sluice",
        "node.runDir": run_dir(),
        "kubelet.rootDir": os.environ["CLUSTER_KUBELET_ROOT"],
        "driver.access": "own",
        "driver.root": f"{gpu}/lib",
        "driver.deviceRoot": f"{gpu}/dev",
        "driver.nvml": f"{gpu}/lib/libnvidia-ml.so.1",
        # The agent divides a card among all allocations whose folder is there: those of ended pods go at once here.
        "devicePlugin.config.collectSeconds": 1,
        "devicePlugin.config.collectGraceSeconds": 2,
        # Pods on the simulated driver see the node's processes (training_pod), which the default denies.
        "policy.privileged": "warn",
    }
    settings.update(more)
    return [x for k, v in settings.items() for x in ("--set", f"{k}={v}")]


def helm(*arguments, **more):
    return run(CLUSTER, "helm", *arguments, **more).stdout


def namespace(name, **labels):
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    wait(
        30,
        f"the service account of {name}",
        lambda: run("kubectl", "-n", name, "get", "serviceaccount", "default", check=False).returncode == 0,
    )


def clean():
    """Removes the objects of a test that was killed: helm would wait for them, and its pods would hold units."""
    helm("uninstall", "sluice", "-n", SPACE, "--ignore-not-found", "--wait", "--timeout", "60s")
    left = [
        n
        for n in kubectl("get", "namespaces", "-o", "name").split()
        if re.fullmatch(rf"namespace/((users|placement|plugin|contract)-\d+|figures|{SPACE})", n)
    ]
    if left:
        kubectl("delete", *left, "--wait=true")


def install(*more):
    namespace(SPACE, **{"pod-security.kubernetes.io/enforce": "privileged"})
    return helm(
        "upgrade",
        "--install",
        "sluice",
        ROOT / "charts" / "sluice",
        "-n",
        SPACE,
        "--wait",
        "--timeout",
        "120s",
        *values(),
        *more,
    )


def offered():
    status = get("node", os.environ["CLUSTER_NODE"])["status"]
    return int(status.get("allocatable", {}).get("sluice.dev/gpu-percent", 0))


TRAIN = ["/app/bin/train", "/app/model.trace"]  # the image's default command


def training_pod(name, annotations, labels=None, **container):
    """A pod as a user writes it: an annotation, an image.

    With hostPID the simulated driver sees whether the other tenant sleeps.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": labels or {}},
        "spec": {
            "hostPID": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "trainer", "image": "sluice.test/workload:1", "imagePullPolicy": "Never", **container}
            ],
        },
    }


def idle_pod(name, annotations, **spec):
    container = {
        "name": "main",
        "image": os.environ["CLUSTER_BASE"],
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000000"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def phase(name, space):
    return kubectl("-n", space, "get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)


def node_pod():
    pods = get("-n", SPACE, "pods", "-l", "app.kubernetes.io/component=node")["items"]
    return next(p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"])


def run_dir():
    """The agent's folder on the node."""
    return os.path.dirname(os.environ["CLUSTER_GPU"]) + "/sluice"


def agent_status():
    return json.loads(in_agent("/usr/bin/sluice", "status", "-o", "json", "--run-dir", run_dir()).stdout)


def agent_page(path):
    """A page of the agent, through the API server's proxy."""
    return kubectl("get", "--raw", f"/api/v1/namespaces/{SPACE}/pods/{node_pod()}:9402/proxy/{path}")


def metric(text, name, **labels):
    """The sum of a metric's samples that carry these labels."""
    total = found = 0
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:{(.*)})? ([-+.\w]+)(?: \d+)?", line)
        if not match or match.group(1) != name:
            continue
        have = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
        if all(have.get(k) == v for k, v in labels.items()):
            total, found = total + float(match.group(3)), found + 1
    if not found:
        raise Failed(f"no sample of {name} with {labels}")
    return total


def plugin(*arguments, **more):
    """kubectl sluice, as people type it: kubectl finds the program by its name."""
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{BUILD}/bin:{path}"
    try:
        return run("kubectl", "sluice", *arguments, **more)
    finally:
        os.environ["PATH"] = path


def kill_in_pods(program):
    """kill -9 for each process of this program in a pod; other tests run the same programs outside of pods."""
    killed = 0
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text().strip() == program[:15] and "/kubepods/" in (entry / "cgroup").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except (OSError, ValueError):
            continue  # no process, or one that has just ended
    if not killed:
        raise Failed(f"no pod runs {program}")


def in_agent(*command, check=True):
    return run("kubectl", "-n", SPACE, "exec", node_pod(), "-c", "agent", "--", *command, check=check)
