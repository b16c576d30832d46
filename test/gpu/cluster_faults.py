"""Rows of test/gpu/cluster: rollouts, killed daemons and tenants, pods without the hook, shares."""

import json
import os
import pathlib
import statistics
import time

import cluster_objects as c
import guard
import product as p
from progress import windows

GIB = 1 << 30
SPACE = "tenants"


class FaultRows:
    """Of Rows, which starts pods and adds lines."""

    def deployment(self):
        self.takes("rolled", 2 * self.work.small_managed)  # the old and the new one
        template = c.pod(
            "x", self.work, self.work.small(3000), {"sluice.dev/gpu-fraction": "0.1"}, self.work.small_managed
        )
        labels = {"app": "rolled"}
        template["spec"]["restartPolicy"] = "Always"
        template["metadata"] = {"labels": labels, "annotations": template["metadata"]["annotations"]}
        p.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "rolled"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {k: template[k] for k in ("metadata", "spec")},
                },
            },
            SPACE,
        )
        alone = lambda: next(iter(found), None) if len(found := self.hooked()) == 1 else None
        before = p.wait(40, "the first pod to be hooked", alone)
        p.kubectl("-n", SPACE, "rollout", "restart", "deployment/rolled")
        p.kubectl("-n", SPACE, "rollout", "status", "deployment/rolled", "--timeout=40s")
        after = p.wait(40, "the second alone to be hooked", lambda: (now := alone()) != before and now)
        state = c.container_state(after, SPACE)
        self.add(
            "a Deployment rolled",
            "a new hooked pod, the old one gone, 0 restarts",
            f"{before} -> {after}, {state['restartCount']} restarts",
            state["restartCount"] == 0,
        )

    def faults(self):
        """helm upgrade, and each daemon killed, while a pod trains."""
        self.start("steady", self.work.small(self.work.steps_of_a_minute), "0.1", self.work.small_managed)
        p.wait(40, "steady to be hooked", lambda: (c.allocation("steady") or {}).get("hook_state") == "attached")
        done = []
        for program in ("sluice-agent", "sluice-device-plugin", "sluice-webhook"):
            c.kill(program)
            p.wait(40, f"{program} to be back", lambda: c.processes(program))
            done.append(f"{program} killed")
        p.wait(
            60,
            "the node's pod to be ready",
            lambda: (
                p.kubectl(
                    "-n", p.SPACE, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=30s", check=False
                ).count("condition met")
                >= 3
            ),
        )
        try:
            c.install(self.work, "--set", "agent.notHooked=evict")
            done.append("helm upgrade")
            running = p.phase("steady", SPACE) == "Running"
            text = self.wait_end("steady")
        finally:
            c.install(self.work)
        state, result = c.container_state("steady", SPACE), self.work.result(text)
        equal = result.values == self.hosted["long"].values
        self.add(
            "daemons killed, chart upgraded while a pod trains",
            "0 restarts, values as bare",
            f"{', '.join(done)}{'' if running else ' (the pod had ended by then)'}: {p.phase('steady', SPACE)}, "
            f"{state['restartCount']} restarts, {self.compared(result, self.hosted['long'])}",
            equal and state["restartCount"] == 0 and running,
        )

    def uses_gpu(self, uid):
        """Whether NVML lists a process of the pod; on the simulated card, whether one has libcuda."""
        pids = c.processes("", uid)
        return any(map(c.uses_cuda, pids)) if self.o.simulated else not guard.open_nvml().processes().isdisjoint(pids)

    def unhooked(self):
        """The image's own entry point takes LD_PRELOAD away."""
        self.start("bypass", self.work.without_preload(self.work.small(3000)), "0.1", self.work.small_managed)
        p.wait(30, "bypass to run", lambda: p.phase("bypass", SPACE) == "Running")
        uid = p.get("-n", SPACE, "pod", "bypass")["metadata"]["uid"]
        running = time.monotonic()
        p.wait(60, "bypass to use the GPU", lambda: self.uses_gpu(uid))
        began = time.monotonic()
        p.wait(40, "the agent to notice", lambda: (c.allocation("bypass") or {}).get("hook_state") == "not hooked")
        noticed = time.monotonic() - began
        p.wait(20, "its Event", lambda: "SluiceNotHooked" in p.kubectl("-n", SPACE, "describe", "pod", "bypass"))
        told = time.monotonic() - began
        doctor = p.run("kubectl", "sluice", "doctor", check=False).stdout
        self.add(
            "a pod that takes the hook away",
            "shown within 10 s of its first use of the GPU, by status, Event and doctor",
            f"status {noticed:.1f} s, Event {told:.1f} s, doctor names it: {'bypass' in doctor}; it used the GPU "
            f"{began - running:.1f} s after the pod ran",
            told <= 10 and "bypass" in doctor,
        )
        try:
            c.install(self.work, "--set", "agent.notHooked=evict")
            began = time.monotonic()
            p.wait(40, "bypass to be deleted", lambda: not p.phase("bypass", SPACE))
            deleted = time.monotonic() - began
        finally:
            c.install(self.work)
        self.add(
            "the same after `helm upgrade` with `agent.notHooked: evict`",
            "deleted within 30 s, with an Event",
            f"deleted {deleted:.1f} s after the upgrade; {c.messages('bypass', SPACE)[:160]}",
            deleted <= 30 and "SluiceNotHooked" in c.messages("bypass", SPACE),
        )

    def killed(self):
        """kill -9 of one tenant, and one that exceeds its container's memory, beside a neighbour."""
        self.start("neighbour", self.work.small(self.work.steps_of_a_minute), "0.1", self.work.small_managed)
        self.start("victim", self.work.small(self.work.steps_of_a_minute), "0.1", self.work.small_managed)
        p.wait(40, "both to be hooked", lambda: len(self.hooked()) == 2)
        uid = p.get("-n", SPACE, "pod", "victim")["metadata"]["uid"]
        for pid in c.processes("", uid):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() != "pause":
                os.kill(pid, 9)
        p.wait(30, "the victim's end", lambda: p.phase("victim", SPACE) == "Failed")
        code = c.container_state("victim", SPACE)["state"]["terminated"]["exitCode"]
        p.kubectl("-n", SPACE, "delete", "pod", "victim", "--force", "--grace-period=0")
        p.wait(20, "its memory to be given back", lambda: self.hooked() == ["neighbour"])
        self.start(
            "glutton", self.work.small(60), "0.1", self.work.small_managed, resources={"limits": {"memory": "64Mi"}}
        )
        p.wait(40, "the glutton's end", lambda: c.ended("glutton", SPACE))
        reason = c.container_state("glutton", SPACE)["state"]["terminated"]["reason"]
        state = c.container_state("neighbour", SPACE)
        alive = "running" in state["state"] and state["restartCount"] == 0
        text = self.wait_end("neighbour")
        steps = self.work.result(text).steps
        self.add(
            "kill -9 of a tenant, out of memory of another",
            "137, OOMKilled; the neighbour trains on, 0 restarts",
            f"{code}, {reason}; the neighbour {'ran on' if alive else 'did not run'}, {p.phase('neighbour', SPACE)}, "
            f"step {statistics.median(steps):.2f} ms",
            code == 137 and reason == "OOMKilled" and alive and p.phase("neighbour", SPACE) == "Succeeded",
        )

    def tenant_env(self, kernel_us=1000):
        """Of tenants whose kernels take so long."""
        if self.o.simulated:
            return {}
        if kernel_us not in self.rounds:
            program = str(self.pack / "host/bin/tenant")
            status, out, err, _ = guard.run([program, "--rounds", str(kernel_us)], {}, 40)
            if status:
                raise p.Failed(f"the kernel could not be measured: {err[-300:]}")
            self.rounds[kernel_us] = out.strip()
        return {"SLUICE_TENANT_ROUNDS": self.rounds[kernel_us]}

    def shares(self):
        """Two tenants that saturate the card, compute-request 0.7 and 0.3."""
        env, seconds = self.tenant_env(2000), 25
        for name, share in (("seven", "0.7"), ("three", "0.3")):
            self.start(
                name,
                ["/app/bin/tenant", "1024", "2000", str(seconds)],
                "0.1",
                4 * GIB,
                annotations={"sluice.dev/compute-request": share},
                image="sluice.test/tenant:1",
                env=env,
            )
        results = []
        for name in ("seven", "three"):
            text = self.wait_end(name)
            results.append(json.loads(next(x[7:] for x in text.splitlines() if x.startswith("RESULT "))))
        part = [shares[0] for shares, _ in windows(results, 10, 3)]
        worst = max((abs(x - 0.7) for x in part), default=1)
        self.add(
            "compute shares 0.7 / 0.3 of two pods, over any 10 s",
            "within 2 points",
            f"{min(part, default=0):.3f} to {max(part, default=0):.3f}",
            worst <= 0.02,
        )
