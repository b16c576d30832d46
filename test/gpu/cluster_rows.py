"""The rows of test/gpu/cluster: each prints the expected and the seen figures."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "test" / "cluster"), str(ROOT / "test" / "lib"), str(HERE)]
import cluster_objects as c  # noqa: E402
import cluster_workloads  # noqa: E402
import exit_line  # noqa: E402
import guard  # noqa: E402
import product as p  # noqa: E402
from cluster_claims import ClaimRows  # noqa: E402
from cluster_faults import SPACE, FaultRows  # noqa: E402
from cluster_neighbours import DDP, NeighbourRows  # noqa: E402
from cluster_objects import collect  # noqa: E402, F401
from cluster_specs import SpecRows  # noqa: E402
from cluster_steps import StepRows  # noqa: E402

GIB = 1 << 30
MANAGED = 19 * GIB  # of all pods that run at once; a quarter of the card's free memory where that is less
STRICT = "restricted-tenants"
# Seconds that a row takes at most, the most important row first.
ROWS = {
    "over": 140,
    "restricted": 60,
    "denied": 10,
    "deployment": 40,
    "faults": 120,
    "unhooked": 60,
    "killed": 60,
    "shares": 60,
    "lending": 50,
    "illegal": 115,
    "servers": 85,
    "claims": 70,
    "cdi": 80,
    "two_cards": 80,
    "steps": 90,
}
NAMED = {"steps"}  # takes all the time that there is: it runs only where it is named


class Rows(FaultRows, NeighbourRows, ClaimRows, SpecRows, StepRows):
    def __init__(self, o, pack, note, out, started):
        self.o, self.pack, self.note, self.out, self.started = o, pack, note, out, started
        self.rows, self.hosted, self.managed, self.most, self.rounds = [], {}, {}, MANAGED, {}
        unknown = [r for r in o.rows if r not in ROWS]
        if unknown:
            sys.exit(f"test/gpu/cluster: '{unknown[0]}' is unknown; accepted: {', '.join(ROWS)}")

    def failed(self):
        return any(not r["met"] for r in self.rows) or not self.rows

    def add(self, name, expected, seen, met):
        self.rows.append({"row": name, "expected": expected, "seen": seen, "met": bool(met)})
        self.note(f"{name}: {seen} (expected: {expected}): {'met' if met else 'MISSED'}")
        (self.out / "cluster.json").write_text(json.dumps(self.rows, indent=1))
        lines = [
            "| " + " | ".join(str(r[k]).replace("|", "\\|").replace("\n", " ") for k in ("row", "expected", "seen"))
            for r in self.rows
        ]
        table = "".join(f"{line} | {'yes' if r['met'] else '**no**'} |\n" for line, r in zip(lines, self.rows))
        (self.out / "cluster.md").write_text("| row | expected | seen | |\n|---|---|---|---|\n" + table)

    def left(self):
        return self.o.budget_seconds - 30 - (time.monotonic() - self.started)

    def run(self):
        if not self.o.simulated:
            self.most = min(MANAGED, guard.open_nvml().memory().free // 4)
        began = time.monotonic()
        c.node("up")
        up = time.monotonic() - began
        if self.o.simulated:
            profile = self.out / "card.profile"
            profile.write_text("name = NVIDIA SimCard 80G\nmemory = 80Gi\nreserve = 512Mi\ncontext_bytes = 512Mi\n")
            c.node("gpus", self.o.simulated, profile)
        self.work = cluster_workloads.of(self.o, self.pack)
        hosts = threading.Thread(target=self.host_values, daemon=True)
        hosts.start()
        folder = pathlib.Path(os.environ["CLUSTER_STATE"]) / "images"
        folder.mkdir()
        images = self.work.images(folder) + [self.pack / "images" / f"{n}.tar" for n in ("sluice", "musl", "tenant")]
        c.node("load", *images)
        p.namespace(p.SPACE, **{"pod-security.kubernetes.io/enforce": "privileged"})
        for name, labels in ((SPACE, {}), (STRICT, {"pod-security.kubernetes.io/enforce": "restricted"})):
            c.namespace(name, self.work, **labels)
        began = time.monotonic()
        c.install(self.work)
        installed = time.monotonic() - began
        units = p.offered()
        self.add(
            "node",
            "a Kubernetes node with a card",
            f"up in {up:.0f} s, {units} units {installed:.0f} s after helm install",
            units >= 100,
        )
        hosts.join()
        for row in self.o.rows or [r for r in ROWS if r not in NAMED]:
            if self.left() < ROWS[row]:
                self.note(f"{row}: left out, {self.left():.0f} s are left and it may take {ROWS[row]}")
                continue
            try:
                getattr(self, row)()
            except (
                p.Failed,
                AssertionError,
                KeyError,
                guard.Refused,
                IndexError,
                StopIteration,
                cluster_workloads.Missing,
                subprocess.SubprocessError,
            ) as error:
                self.add(row, "it runs to its end", f"{type(error).__name__}: {str(error)[-400:]}", False)
            self.clear()

    def clear(self):
        for space in (SPACE, STRICT):
            p.kubectl("-n", space, "delete", "deployments,pods", "--all", "--force", "--grace-period=0", check=False)
        p.wait(30, "the allocations to be given back", lambda: not c.status().get("allocations"))
        self.managed.clear()

    # --- the same programs on the machine itself

    def on_host(self, command, hook=None, state="run"):
        return self.work.result(self.host_text(command, hook, state))

    def host_text(self, command, hook=None, state="run", more=()):
        """`hook`: the fraction of the card under `sluice run`; `more`: its further flags."""
        program, env = self.work.on_host(command, state)
        if hook:
            run = [self.work.sluice(), "run", "--own-agent", *self.work.sluice_run(), "--fraction", hook, *more]
            program = [*run, "--run-dir", os.environ["CLUSTER_RUN"] + "/host-run", "--", *program]
            env = {**env, "SLUICE_MANAGED_LIMIT": str(self.work.large_managed)}
        status, out, err, _ = guard.run(list(map(str, program)), env, 100)
        (self.out / "host.txt").open("a").write(f"{program}: {status}\n{out[-3000:]}\n{err[-3000:]}\n")
        return f"{out}\n{err}"

    def host_values(self):
        """Beside the node's start, and at once: values only, no times."""
        wanted = self.o.rows or list(ROWS)

        def one(key, command):
            try:
                self.hosted[key] = self.on_host(command, state=key)
            except cluster_workloads.Missing as missing:
                self.note(f"{key} on the machine: {missing}")

        threads = [
            threading.Thread(target=one, args=(key, command), daemon=True)
            for key, rows, command in (
                ("large", ("over",), self.work.large()),
                ("trained", ("steps",), self.work.trained(30)),
                ("small", ("restricted", "claims", "cdi"), self.work.small(60)),
                ("long", ("faults", "illegal"), self.work.small(self.work.steps_of_a_minute)),
                ("two_cards", ("two_cards",), DDP),
            )
            if any(r in wanted for r in rows) and not (self.o.simulated and key == "two_cards")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- rows

    def takes(self, name, managed):
        """The guard of test/gpu: managed memory of all pods of a row, whether they have ended or not."""
        self.managed[name] = managed
        if sum(self.managed.values()) > self.most:
            raise guard.Refused(f"{self.managed} managed bytes; at most {self.most} at once")

    def start(self, name, command, fraction, managed, space=SPACE, annotations=None, **more):
        self.takes(name, managed)
        notes = {"sluice.dev/gpu-fraction": fraction, **(annotations or {})}
        pod = c.pod(name, self.work, command, notes, managed, restricted=space == STRICT, **more)
        p.apply(pod, space)

    @staticmethod
    def hooked():
        return [a["pod"] for a in c.status().get("allocations", []) if a["hook_state"] == "attached"]

    def wait_end(self, name, space=SPACE, seconds=100):
        c.wait_end(name, space, seconds)
        p.wait(5, f"{name} to end", lambda: c.ended(name, space) or not p.phase(name, space))
        if not p.phase(name, space):
            raise p.Failed(f"{name} was deleted: {c.messages(name, space)}")
        return c.logs(name, space)

    @staticmethod
    def compared(result, bare):
        return f"{len(result.values)} values {'equal' if result.values == bare.values else 'DIFFERENT'}"

    def over(self):
        """1.5 times its budget, twice, between two times `sluice run`: a drift of the machine is in both."""
        fraction, command = self.work.fraction, self.work.large()
        host = [self.on_host(command, fraction)]
        self.start("over", command, fraction, self.work.large_managed, annotations={"sluice.dev/log-level": "INFO"})
        p.wait(30, "over to be hooked", lambda: (c.allocation("over") or {}).get("hook_state") == "attached")
        self.agreement("over")
        text = self.wait_end("over")
        (self.out / "over.log").write_text(text)
        lines = exit_line.parse(text)
        line = lines[0] if lines else {}
        self.add(
            "a pod's log",
            "kubectl logs holds the exit line",
            f"{len(lines)} line: budget {line.get('budget_bytes', 0) / GIB:.2f} GiB, "
            f"evicted {line.get('evicted_bytes', 0) / GIB:.1f} GiB",
            len(lines) == 1 and line["evicted_bytes"] > GIB,
        )
        result = self.work.result(text)
        bare = self.hosted["large"]
        live = result.live / line["budget_bytes"] if result.live else 0
        self.add(
            f"{fraction} of the card, over its budget",
            "values bit for bit as bare" + (", live >= 1.5 x budget" if live else ""),
            f"{self.compared(result, bare)}, live {live:.2f} x budget",
            result.values == bare.values and (not live or live >= 1.5),
        )
        self.clear()  # else the first pod's share would be lent to the second
        self.start("again", command, fraction, self.work.large_managed)
        pods = [result, self.work.result(self.wait_end("again"))]
        host.append(self.on_host(command, fraction))
        ratio = sum(r.step for r in pods) / sum(h.step for h in host)
        times = lambda results: " and ".join(f"{r.step:.1f}" for r in results)
        self.add(
            "its step",
            "within 10 % of `sluice run`: so few runs tell no less; the row `steps` tells 3 %",
            f"{times(pods)} ms, `sluice run` {times(host)} (ratio {ratio:.3f})",
            ratio <= 1.1,
        )

    def agreement(self, name):
        """One training in `kubectl sluice top`, /metrics, Events and NVML."""
        p.wait(30, "its Event", lambda: "SluiceAttached" in p.kubectl("-n", SPACE, "describe", "pod", name))
        top = p.run("kubectl", "sluice", "top", "--once").stdout
        resident_now = lambda: p.metric(p.agent_page("metrics"), "sluice_resident_bytes", pod=name)
        p.wait(40, "its memory", lambda: resident_now() > GIB)
        page = p.agent_page("metrics")
        resident = p.metric(page, "sluice_resident_bytes", pod=name)
        budget = p.metric(page, "sluice_budget_bytes", pod=name)
        if self.o.simulated:
            used = "not asked: simulated"
            fits = True
        else:
            bytes_ = guard.open_nvml().memory().used
            used, fits = f"{bytes_ / GIB:.2f} GiB", bytes_ <= budget + 1.5 * GIB
        self.add(
            "its figures",
            "top and Event name the pod; resident <= budget in /metrics; NVML <= budget + 1.5 GiB",
            f"resident {resident / GIB:.2f}, budget {budget / GIB:.2f} GiB, NVML {used}",
            f"{SPACE}/{name}/main" in top and resident <= budget and fits,
        )

    def restricted(self):
        """PodSecurity `restricted`, another uid, a read-only root; and beside it an image of musl, without CUDA."""
        self.start("strict", self.work.small(60), "0.1", self.work.small_managed, STRICT)
        self.start("musl", None, "0.02", GIB, STRICT, image="sluice.test/musl:1")
        musl, text = self.wait_end("musl", STRICT), self.wait_end("strict", STRICT)
        result = self.work.result(text)
        self.add(
            "restricted namespace, uid 12345, read-only root",
            "values as bare, an exit line",
            f"{p.phase('strict', STRICT)}, {self.compared(result, self.hosted['small'])}, "
            f"{len(exit_line.parse(text))} exit line",
            result.values == self.hosted["small"].values and exit_line.attached(text),
        )
        whole = "musl: works" in musl and "child: works" in musl
        self.add(
            "musl image beside it",
            "undisturbed",
            f"{p.phase('musl', STRICT)}: {musl.strip()[:160]}",
            whole and p.phase("musl", STRICT) == "Succeeded",
        )

    def denied(self):
        for key, value in (("gpu-fraction", "1.5"), ("gpu-fracton", "0.5")):
            pod = c.pod("wrong", self.work, ["/usr/bin/env"], {f"sluice.dev/{key}": value}, GIB)
            output = p.apply(pod, SPACE, check=False)
            self.add(
                f"{key}: {value}",
                "denied, with the name or value in the sentence",
                output.stderr.strip().split("denied the request: ")[-1][:200],
                output.returncode != 0 and (value if key == "gpu-fraction" else key) in output.stderr,
            )
