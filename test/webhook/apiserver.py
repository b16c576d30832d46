#!/usr/bin/env python3
"""Starts etcd and a real kube-apiserver in a temporary folder, on free loopback ports.

For tests of admission and of the API client.
As a program: apiserver.py run CMD...   runs CMD with KUBECONFIG and SLUICE_APISERVER (the folder)
              apiserver.py restart      called by CMD: stops the API server and starts it again
Exit status 4 means that the programs are missing and the test is skipped.
"""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "lib"))
from harness import free_port  # noqa: E402


def skip_without_programs(*names):
    """The folder with the programs: SLUICE_KUBE_BIN, or the output of the local cluster's build for this tree."""
    where = subprocess.run([HERE + "/../cluster/tools/build", "--where"], capture_output=True, text=True).stdout.strip()
    needed = names or ("etcd", "kube-apiserver")
    for folder in (os.environ.get("SLUICE_KUBE_BIN"), where):
        if folder and all(os.access(os.path.join(folder, p), os.X_OK) for p in needed):
            return folder
    minor = os.environ.get("SLUICE_CLUSTER_KUBERNETES")
    of, build = (f" of Kubernetes {minor}", f"SLUICE_CLUSTER_KUBERNETES={minor} ") if minor else ("", "")
    print(
        f"SKIPPED: no {', '.join(needed)}{of}; "
        f"build them with {build}test/cluster/cluster build, or set SLUICE_KUBE_BIN",
        file=sys.stderr,
    )
    sys.exit(4)


def gates(programs):
    """The feature gate that amounts in claims need; Kubernetes 1.34 knows it, and it is on since 1.36."""
    output = subprocess.run(
        [os.path.join(programs, "kube-apiserver"), "--version"], capture_output=True, text=True
    ).stdout
    minor = int(output.split("v1.")[1].split(".")[0])
    return ["--feature-gates=DRAConsumableCapacity=true"] if minor >= 34 else []


def bound(*command):
    """A command that the kernel kills when this process ends, so that a killed test leaves no servers behind."""
    return ["setpriv", "--pdeathsig", "KILL", *map(str, command)]


def openssl(folder, *args):
    subprocess.run(["openssl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_ca(folder, name="ca"):
    openssl(
        folder,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=" + name,
        "-keyout",
        name + ".key",
        "-out",
        name + ".crt",
    )


def make_leaf(folder, name, subject, ca="ca", names="", days="2"):
    """A certificate NAME.crt, NAME.key signed by `ca`."""
    openssl(
        folder,
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        subject,
        "-keyout",
        name + ".key",
        "-out",
        name + ".csr",
    )
    with open(os.path.join(folder, name + ".ext"), "w") as f:
        f.write("extendedKeyUsage=serverAuth,clientAuth\n" + ("subjectAltName=" + names + "\n" if names else ""))
    openssl(
        folder,
        "x509",
        "-req",
        "-in",
        name + ".csr",
        "-CA",
        ca + ".crt",
        "-CAkey",
        ca + ".key",
        "-CAcreateserial",
        "-days",
        days,
        "-extfile",
        name + ".ext",
        "-out",
        name + ".crt",
    )


class ApiServer:
    def __init__(self, folder, programs):
        self.folder = folder
        self.programs = programs
        self.processes = {}

    def start(self):
        f = self.folder
        self.etcd, self.peer, self.port = free_port(), free_port(), free_port()
        make_ca(f)
        make_leaf(f, "server", "/CN=kube-apiserver", names="DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1")
        make_leaf(f, "admin", "/O=system:masters/CN=admin")
        openssl(f, "genrsa", "-out", "sa.key", "2048")
        with open(f + "/tokens.csv", "w") as t:
            t.write(
                "token-one,tester,1,system:masters\ntoken-two,tester,1,system:masters\n"
                "token-throttled,throttled,3\ntoken-webhook,webhook,4\n"
            )  # no group, because system:masters is exempt
        with open(f + "/token", "w") as t:
            t.write("token-one")
        data = {
            k: base64.b64encode(open(f + "/" + k, "rb").read()).decode() for k in ("ca.crt", "admin.crt", "admin.key")
        }
        with open(f + "/kubeconfig", "w") as k:
            k.write(f"""apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]
clusters:
  - name: test
    cluster: {{server: "https://127.0.0.1:{self.port}", certificate-authority-data: {data["ca.crt"]}}}
users: [{{name: admin, user: {{client-certificate-data: {data["admin.crt"]}, client-key-data: {data["admin.key"]}}}}}]
""")
        client, peer = f"http://127.0.0.1:{self.etcd}", f"http://127.0.0.1:{self.peer}"
        self.commands = {
            "etcd": [
                "etcd",
                "--data-dir",
                f + "/etcd",
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                "default=" + peer,
                "--unsafe-no-fsync",
                "--log-level",
                "error",
            ],
            "kube-apiserver": [
                "kube-apiserver",
                "--etcd-servers=" + client,
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                # 1.37 accepts no loopback address to advertise, and no test asks for the service `kubernetes`.
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--cert-dir=" + f + "/run",
                "--tls-cert-file=" + f + "/server.crt",
                "--tls-private-key-file=" + f + "/server.key",
                "--client-ca-file=" + f + "/ca.crt",
                "--authorization-mode=RBAC",
                "--token-auth-file=" + f + "/tokens.csv",
                "--service-account-issuer=https://localhost",
                "--service-account-key-file=" + f + "/sa.key",
                "--service-account-signing-key-file=" + f + "/sa.key",
                "--disable-admission-plugins=ServiceAccount",
                # no controller-manager creates the default service account
                "--allow-privileged=true",
                "--profiling=false",
                "--etcd-compaction-interval=5s",
                *gates(self.programs),
            ],
        }
        self.spawn("etcd")
        self.spawn("kube-apiserver")
        self.wait()

    def spawn(self, name):
        command = self.commands[name]
        log = open(f"{self.folder}/{name}.log", "a")
        self.processes[name] = subprocess.Popen(
            bound(os.path.join(self.programs, command[0]), *command[1:]),
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=self.folder,
        )

    def wait(self, seconds=90):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if self.call("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.stderr.write(open(self.folder + "/kube-apiserver.log").read()[-3000:])
        raise SystemExit("the API server did not become ready")

    def connection(self):
        context = ssl.create_default_context(cafile=self.folder + "/ca.crt")
        context.load_cert_chain(self.folder + "/admin.crt", self.folder + "/admin.key")
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=30)

    def call(self, method, path, body=None, kind="application/json", connection=None):
        """(status, decoded answer, warnings)"""
        c = connection or self.connection()
        c.request(
            method,
            path,
            json.dumps(body) if body is not None else None,
            {"Content-Type": kind, "Accept": "application/json"},
        )
        answer = c.getresponse()
        text = answer.read().decode("utf-8", "replace")
        warnings = answer.headers.get_all("Warning") or []
        try:
            return answer.status, json.loads(text), warnings
        except ValueError:
            return answer.status, text, warnings

    def stop(self):
        for p in self.processes.values():
            p.kill()
            p.wait()

    def restart(self):
        """Kills the API server and starts it again with the same port and data."""
        self.processes["kube-apiserver"].kill()
        self.processes["kube-apiserver"].wait()
        time.sleep(1)
        self.spawn("kube-apiserver")
        self.wait()


def ask_restart(folder):
    """Asks the program that owns the API server, because the server ends with its parent."""
    done = folder + "/restarted"
    if os.path.exists(done):
        os.remove(done)
    os.kill(int(os.environ["SLUICE_APISERVER_PID"]), signal.SIGUSR1)
    end = time.time() + 120
    while not os.path.exists(done):
        if time.time() > end:
            raise SystemExit("the API server did not restart")
        time.sleep(0.1)


def main():
    if sys.argv[1:] == ["restart"]:
        ask_restart(os.environ["SLUICE_APISERVER"])
        return 0
    if len(sys.argv) < 3 or sys.argv[1] != "run":
        print(__doc__)
        return 2
    programs = skip_without_programs()
    folder = tempfile.mkdtemp(prefix="sluice-api-")
    server = ApiServer(folder, programs)
    try:
        server.start()

        def again(*_):
            server.restart()
            open(folder + "/restarted", "w").close()

        signal.signal(signal.SIGUSR1, again)
        env = dict(
            os.environ,
            KUBECONFIG=folder + "/kubeconfig",
            SLUICE_APISERVER=folder,
            SLUICE_APISERVER_PID=str(os.getpid()),
        )
        return subprocess.call(bound(*sys.argv[2:]), env=env)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
