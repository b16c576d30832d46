"""The row `steps` of test/gpu/cluster: one training in pods and under `sluice run`, in turn, many times.

Medians of one program differ by 12 % from run to run, so the ratios are shown with their 95 % intervals. Nothing asks
the API server while a pod trains: cluster_objects.wait_end listens.
"""

import json
import os
import pathlib
import statistics
import threading
import time

import cluster_objects as c
import cluster_workloads
import exit_line
import product as p
from cluster_faults import SPACE
from ratios import interval, of_medians

GIB = 1 << 30
STEPS, SKIPPED = 30, 12
LOOK_AFTER_S = 3
LEVEL = "INFO"
SHOWN = ("fetched_bytes", "evicted_bytes", "fault_bytes", "remote_bytes")
# Files of /proc/PID whose contents a container may change.
FILES = ("limits", "cgroup", "oom_score_adj")
STATUS = ("Cpus_allowed_list", "Mems_allowed_list", "Seccomp", "NoNewPrivs", "CapEff", "THP_enabled", "Threads")
VARIABLES = ("SLUICE_", "CUDA", "NVIDIA", "LD_", "PYTORCH", "PYTHON", "OMP", "MKL", "MALLOC", "HOME", "LANG", "PATH")


def parents(pid):
    while pid > 1:
        pid = int((pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1]).split()[1])
        yield pid


def surroundings(kind):
    """Of the hooked process: what its container may have changed, and the device nodes that it has open."""
    text, pods = "", set(c.processes())
    for folder in pathlib.Path("/proc").iterdir():
        try:
            pid = int(folder.name) if folder.name.isdigit() else 0
            if not pid or not (pid in pods if kind == "pod" else os.getpid() in parents(pid)):
                continue
            if "libsluice_engine" not in (folder / "maps").read_text():
                continue
            text += f"--- {(folder / 'comm').read_text()}"
            for name in FILES:
                text += f"{name}:\n{(folder / name).read_text()}"
            text += "".join(
                f"{line}\n" for line in (folder / "status").read_text().splitlines() if line.split(":")[0] in STATUS
            )
            variables = (folder / "environ").read_text().split("\0")
            text += "".join(f"{one}\n" for one in sorted(variables) if one.startswith(VARIABLES))
            opened = {str(fd.readlink()) for fd in (folder / "fd").iterdir()}
            text += f"devices: {' '.join(sorted(name for name in opened if name.startswith('/dev/')))}\n"
        except OSError:
            continue  # it has ended
    return text


class StepRows:
    """Of Rows, which starts pods and adds lines."""

    def steps(self):
        wanted, runs, last = self.o.pairs, [], 0.0
        command, fraction = self.work.trained(STEPS), self.work.fraction
        for pair in range(wanted):
            began = time.monotonic()
            if pair and self.left() < 1.2 * last + 5:
                self.note(f"steps: {pair} of {wanted} pairs, the time is used up")
                break
            both = []
            for kind, program in (("pod", self.pod_text), ("run", self.run_text)):
                if pair == 0:
                    threading.Timer(LOOK_AFTER_S, self.look, (kind,)).start()
                both.append(self.measured(pair, kind, program(command, fraction)))
            runs.append(both)
            (self.out / "steps.json").write_text(json.dumps(runs))
            last = time.monotonic() - began  # the first pair also reads PyTorch from disk
        self.compare(runs)

    def look(self, kind):
        """Writes the surroundings of the first run of this kind, once its hook works."""
        for _ in range(40):
            if text := surroundings(kind):
                (self.out / f"surroundings-{kind}.txt").write_text(text)
                return
            time.sleep(0.5)

    def pod_text(self, command, fraction):
        # Else the last pod's share would be lent to this one.
        p.wait(30, "the last pod's allocation to be given back", lambda: not c.status().get("allocations"))
        level = {"sluice.dev/log-level": LEVEL}
        self.start("steps", command, fraction, self.work.large_managed, annotations=level)
        text = self.wait_end("steps")
        p.kubectl("-n", SPACE, "delete", "pod", "steps", "--force", "--grace-period=0")
        return text

    def run_text(self, command, fraction):
        return self.host_text(command, fraction, more=["--log-level", LEVEL])

    def measured(self, pair, kind, text):
        result, lines = self.work.result(text), exit_line.parse(text)
        if len(lines) != 1:
            raise cluster_workloads.Missing(f"{len(lines)} exit lines of {kind} {pair}: {text[-400:]}")
        step, line = statistics.median(result.steps[SKIPPED:] or result.steps), lines[0]
        figures = ", ".join(f"{name[:-6]} {line[name] / GIB:.2f}" for name in SHOWN)
        self.note(
            f"steps {pair} {kind}: {step:.1f} ms, budget {line['budget_bytes'] / GIB:.3f} GiB, {figures}, "
            f"stall {line['stall_seconds']:.1f} s, map {line['map_seconds']:.2f} s; {result.spent}"
        )
        return {"kind": kind, "step": step, "steps": result.steps, "values": result.values, "exit": line} | {
            "live": result.live,
            "spent": result.spent,
        }

    def compare(self, runs):
        pairs = [tuple(one["step"] for one in both) for both in runs]
        shown = lambda three: "{:.3f} ({:.3f} to {:.3f})".format(*three)
        told = lambda steps: f"median {statistics.median(steps):.1f} ms ({min(steps):.1f} to {max(steps):.1f})"
        pods, hosts = zip(*pairs)
        ratio = of_medians(pairs)
        equal = all(one["values"] == runs[0][0]["values"] for both in runs for one in both)
        total = lambda i, name: statistics.median(both[i]["exit"][name] for both in runs) / GIB
        moved = ", ".join(f"{name[:-6]} {total(0, name):.2f} and {total(1, name):.2f} GiB" for name in SHOWN)
        self.add(
            f"its step, {len(runs)} pairs in turn",
            "medians within 3 % of `sluice run`, the same values",
            f"pods {told(pods)}, `sluice run` {told(hosts)}; ratio of medians {shown(ratio)}, mean of pairs' ratios "
            f"{shown(interval([a / b for a, b in pairs]))}; {moved}; values {'equal' if equal else 'DIFFERENT'}",
            ratio[0] <= 1.03 and equal,
        )
