"""Row of test/gpu/cluster: CDI specs as NVIDIA's toolkit writes them, on a node without NVIDIA's runtime."""

import json
import os
import pathlib
import re

import cluster_objects as c
import exit_line
import product as p
from cluster_faults import SPACE

SPECS = pathlib.Path("/etc/cdi")  # of the node's mount namespace
OWN = pathlib.Path("/var/run/cdi")
LIBRARIES = re.compile(r"lib(cuda|nvidia-(ml|ptxjitcompiler|nvvm\d*|gpucomp|pkcs11.*))\.so\.\d.*")
FOLDERS = ("", "lib64", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
MARK = "SPEC_WRITTEN_BY=hand"


def nodes():
    """Device node of each card by UUID, as the product's own specs say."""
    found = {}
    for path in OWN.glob("sluice.dev-gpu_*.json"):
        for device in json.loads(path.read_text())["devices"]:
            found[device["name"]] = device["containerEdits"]["deviceNodes"][0]["path"]
    return found


def spec(cards, root, devices):
    """The toolkit writes the same edits; its hook's links are mounts here."""
    folder = next(f for name in FOLDERS if list((f := pathlib.Path(root, name)).glob("libcuda.so.1")))
    node = lambda path: {"path": path, "hostPath": f"{devices}/{os.path.basename(path)}"}
    control = [f"/dev/{n}" for n in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools") if os.path.exists(f"{devices}/{n}")]
    mounts = [
        {
            "hostPath": str(path.resolve()),
            "containerPath": f"/usr/lib/x86_64-linux-gnu/{path.name}",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
        for path in sorted(folder.iterdir())
        if LIBRARIES.fullmatch(path.name)
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [node(path)]}} for uuid, path in sorted(cards.items())
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", MARK],
            "deviceNodes": [node(path) for path in control],
            "mounts": mounts,
        },
    }


class SpecRows:
    """Of Rows, which starts pods and adds lines."""

    def cdi(self):
        """`driver.access: nvidia-cdi` with `driver.root`. First without a spec: no unit, and the reason."""
        values, cards = self.work.values(), nodes()
        path = SPECS / "nvidia.json"
        try:
            c.install(self.work, "--set", "driver.access=nvidia-cdi", units=False)
            p.wait(60, "no unit without a spec", lambda: p.offered() == 0)
            node = lambda: p.run("kubectl", "describe", "node").stdout
            p.wait(30, "the reason", lambda: "no CDI spec on this node names nvidia.com/gpu=" in node())
            path.write_text(json.dumps(spec(cards, values["driver.root"], values.get("driver.deviceRoot", "/dev"))))
            p.wait(60, "units by the spec", lambda: p.offered() >= 100)
            self.start("specified", self.work.small(60), "0.1", self.work.small_managed)
            p.wait(40, "specified to run", lambda: (c.allocation("specified") or {}).get("hook_state") == "attached")
            uid = p.get("-n", SPACE, "pod", "specified")["metadata"]["uid"]
            marked = [pid for pid in c.processes(pod_uid=uid) if has_mark(pid)]
            text = self.wait_end("specified")
            result = self.work.result(text)
            self.add(
                "NVIDIA's CDI specs, written by hand, and no runtime of NVIDIA's",
                "no unit and an Event before; then the card by the spec, values as bare, an exit line",
                f"units {p.offered()}, {len(marked)} processes with the spec's variable, "
                f"{p.phase('specified', SPACE)}, {self.compared(result, self.hosted['small'])}, "
                f"{len(exit_line.parse(text))} exit line",
                marked and result.values == self.hosted["small"].values and exit_line.attached(text),
            )
            p.kubectl("-n", SPACE, "delete", "pod", "specified", "--force", "--grace-period=0")
        finally:
            path.unlink(missing_ok=True)
            c.install(self.work)


def has_mark(pid):
    try:
        return MARK.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has just ended
