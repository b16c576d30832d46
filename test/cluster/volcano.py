"""Volcano's scheduler and controllers beside the local cluster, as programs.

SLUICE_VOLCANO names a folder with the programs vc-scheduler and vc-controller-manager and, in crd/, Volcano's
definitions: those of an installed release. Volcano is not fetched here.
"""

import json
import os
import pathlib
import re
import subprocess

import product as p
import yaml

UNITS = "sluice.dev/gpu-percent"
PROGRAMS = ("vc-scheduler", "vc-controller-manager")
# Volcano's own default, with the actions that evict. Without `enqueue`: it keeps Jobs pending for which the queue's sum
# does not suffice, before there is a pod that others could be evicted for.
ACTIONS = "allocate, preempt, reclaim, backfill"
TIERS = [
    {
        "plugins": [
            {"name": "priority"},
            {"name": "gang", "enablePreemptable": False},
            {"name": "conformance"},
        ]
    },
    {
        "plugins": [
            {"name": "overcommit"},
            {"name": "drf", "enablePreemptable": False},
            {"name": "predicates"},
            {"name": "proportion"},
            {"name": "nodeorder"},
            {"name": "binpack"},
        ]
    },
]


def folder():
    """The folder of Volcano's programs, or the reason why there is none."""
    name = os.environ.get("SLUICE_VOLCANO", "")
    if not name:
        return None, "SLUICE_VOLCANO names no folder with vc-scheduler, vc-controller-manager and crd/"
    root = pathlib.Path(name)
    missing = [f for f in PROGRAMS if not os.access(root / f, os.X_OK)]
    missing += [] if list(root.glob("crd/*.yaml")) else ["crd/*.yaml"]
    return (None, f"{root} (SLUICE_VOLCANO) lacks {', '.join(missing)}") if missing else (root, "")


def fragment():
    """The chart's plugin for Volcano's configuration."""
    return yaml.safe_load(p.get("-n", p.SPACE, "configmap", "sluice-scheduler")["data"]["volcano.yaml"])


def configuration(extender):
    tiers = json.loads(json.dumps(TIERS))
    if extender:
        at = [x["name"] for x in tiers[1]["plugins"]].index("predicates") + 1
        tiers[1]["plugins"][at:at] = fragment()
    return yaml.safe_dump({"actions": ACTIONS, "tiers": tiers})


class Volcano:
    """The two programs. The scheduler runs in the node's network, where Services have their addresses."""

    def __init__(self, logs):
        self.root, self.logs, self.running = folder()[0], pathlib.Path(logs), {}

    def install(self):
        p.kubectl("apply", "--server-side", *(x for f in sorted(self.root.glob("crd/*.yaml")) for x in ("-f", f)))
        names = [d["metadata"]["name"] for f in self.root.glob("crd/*.yaml") for d in yaml.safe_load_all(f.read_text())]
        p.kubectl("wait", "--for=condition=Established", "crd", *names, "--timeout=60s")
        p.namespace("volcano-system")
        self.start("vc-controller-manager", "--scheduler-name=volcano", *self.common(11252))

    def common(self, port):
        return (
            *("--kubeconfig", os.environ["KUBECONFIG"], "--leader-elect=false", "--logtostderr=true"),
            *(f"--healthz-address=127.0.0.1:{port}", f"--listen-address=127.0.0.1:{port + 10}", "-v=3"),
        )

    def schedule(self, extender):
        """Starts the scheduler, anew with another configuration."""
        self.stop("vc-scheduler")
        # The scheduler reads its configuration anew when anything in the folder is written.
        file = self.logs / "configuration" / "volcano-scheduler.conf"
        file.parent.mkdir(exist_ok=True)
        # The Service's address: the programs beside the cluster have no DNS of it.
        text = configuration(extender)
        if extender:
            address = p.get("-n", p.SPACE, "service", "sluice-volcano")["spec"]["clusterIP"]
            text = re.sub(r"http://[^:]+:", f"http://{address}:", text)
        file.write_text(text)
        self.start("vc-scheduler", f"--scheduler-conf={file}", "--scheduler-name=volcano", *self.common(11251))
        p.wait(
            60, "Volcano's default queue", lambda: "default" in p.kubectl("get", "queues", "-o", "name", check=False)
        )

    def start(self, name, *arguments):
        # Its parent's death ends it too.
        network = ["nsenter", f"--net={os.environ['CLUSTER_NETNS']}"]
        bound = ["setpriv", "--pdeathsig", "KILL", *network, str(self.root / name), *map(str, arguments)]
        with open(self.logs / f"{name}.log", "a") as log:
            self.running[name] = subprocess.Popen(bound, stdout=log, stderr=log)

    def stop(self, name):
        program = self.running.pop(name, None)
        if program:
            program.kill()
            program.wait()

    def remove(self):
        for kind in ("jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh"):
            p.kubectl("delete", kind, "-A", "--all", "--wait=true", "--timeout=60s", check=False)
        for name in list(self.running):
            self.stop(name)
        names = [c["metadata"]["name"] for c in p.get("crds")["items"]]
        mine = [n for n in names if n.endswith(".volcano.sh")]
        if mine:
            p.kubectl("delete", "crd", *mine, "--wait=true", "--timeout=60s", check=False)
        p.kubectl("delete", "namespace", "volcano-system", "--wait=false", check=False)
