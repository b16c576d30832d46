"""kubectl sluice on a fake API server of thousands of nodes, through the real kubectl, whose processes are counted."""

import os
import pathlib
import shutil
import subprocess
import time

import large_cluster
from fake_apiserver import Collection, FakeApiServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def find_kubectl():
    """Of the local cluster's programs, else of this machine; None: there is none."""
    where = subprocess.run([ROOT / "test/cluster/tools/build", "--where"], capture_output=True, text=True, check=False)
    built = pathlib.Path(where.stdout.strip() or "/nowhere") / "kubectl"
    return str(built) if built.exists() else shutil.which("kubectl")


class ManyNodes:
    def __init__(self, program, kubectl, folder, nodes, workers, name="sluice", down=(), delay=0.02):
        """down: nodes whose agents cannot be reached. delay: seconds that each agent takes to answer."""
        self.folder, self.log, self.program = folder, folder / "kubectl.log", folder / "kubectl-sluice"
        self.program.symlink_to(program)
        wrapper = folder / "bin" / "kubectl"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\necho "$*" >>"{self.log}"\nexec "{kubectl}" "$@"\n')
        wrapper.chmod(0o755)
        version = (ROOT / "VERSION").read_text().split()[0]
        page = large_cluster.status_page(version)
        unreachable = {f"agent-{node:05d}" for node in down}
        kinds = {
            "/api/v1/nodes": large_cluster.make_nodes(nodes),
            "/api/v1/pods": large_cluster.make_sluice(nodes, workers, name),
            SLICES: Collection("ResourceSlice", 0, None),
            REGISTRATIONS: large_cluster.make_registration(name),
        }
        self.server = FakeApiServer(
            kinds, lambda pod: None if pod in unreachable else page.replace("@N@", pod[-5:]), delay=delay
        )
        self.kubeconfig = self.server.kubeconfig(folder / "kubeconfig")

    def environment(self):
        """Of kubectl-sluice, which finds kubectl in PATH and the cluster by its kubeconfig."""
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig), "XDG_RUNTIME_DIR": str(self.folder)}

    def run(self, *arguments):
        """Runs kubectl-sluice. Returns its result, with `seconds` and the `calls` of kubectl."""
        self.log.write_text("")
        self.server.most = 0
        begin = time.monotonic()
        done = subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, env=self.environment(), timeout=300
        )
        done.seconds = time.monotonic() - begin
        done.calls = self.log.read_text().splitlines()
        return done
