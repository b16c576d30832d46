"""Rows of test/gpu/cluster in which two pods share the card: lent memory, servers, an illegal address."""

import itertools
import json
import statistics
import time

import cluster_objects as c
import exit_line
import guard
import product as p
from cluster_faults import SPACE
from progress import done_at

GIB = 1 << 30
SERVED_S = 4
SLOTS = 4
TENANT = "sluice.test/tenant:1"
STRAY = ["python3", "-u", "/workloads/illegal_address.py"]
DDP = ["python3", "-u", "/workloads/features.py", "ddp"]


def line(text, word):
    """The first line that begins with the word, as JSON."""
    found = next((x for x in text.splitlines() if x.startswith(word + " ")), None)
    if found is None:
        raise p.Failed(f"no {word} line: {text[-600:]}")
    return json.loads(found[len(word) :])


def lines(text, word):
    return [json.loads(x[len(word) :]) for x in text.splitlines() if x.startswith(word + " ")]


class NeighbourRows:
    """Of Rows, which starts pods and adds lines."""

    def lending(self):
        """An owner works for 3 s, sleeps for 12 and works again; a neighbour over its budget works all the time."""
        owner_gib, sleep_ms = 3, 12000
        for name, gib, seconds, busy in (("owner", owner_gib, 19, [3000, sleep_ms]), ("borrower", 7, 20, [0, 0])):
            self.start(
                name,
                ["/app/bin/tenant", *map(str, (gib << 10, 1000, seconds, *busy))],
                self.work.fraction,  # 4 GiB: the borrower lacks 3
                (gib + 1) * GIB,
                image=TENANT,
                env=self.tenant_env(),
            )
        p.wait(40, "both to be hooked", lambda: len(self.hooked()) == 2)
        lent = []

        def over():
            lent.append(sum(int(g["lent_bytes"]) for g in c.status()["gpus"]))
            return c.ended("owner", SPACE)

        p.wait(60, "the owner's end", over)
        owner, borrower = line(self.wait_end("owner"), "RESULT"), line(self.wait_end("borrower"), "RESULT")
        times = [t for t, _ in owner["done"]]
        slept, began = max((b - a, a) for a, b in itertools.pairwise(times))
        woke = began + sleep_ms / 1e3
        steps = owner_gib << 10 >> 6  # launches that touch each block once
        before = done_at(owner, woke)
        first = next((t for t in times if done_at(owner, t) >= before + steps), None)
        late = (first - woke) * 1e3 - steps * owner["kernel_us"] / 1e3 if first else float("inf")
        self.add(
            "an idle pod lends its memory, and wakes",
            "lent > 1 GiB; each of its 3 GiB is back, and used once, within 0.5 s beyond the kernels' own time",
            f"lent {max(lent) / GIB:.2f} GiB; {late:.0f} ms; slept {slept:.1f} s; "
            f"the borrower's slowest step {borrower['slowest_s'] * 1e3:.0f} ms",
            max(lent) > GIB and late <= 500,
        )

    def illegal(self):
        """A kernel that writes to an illegal address ends its own process alone."""
        if self.o.simulated:
            return self.note("illegal: left out, the simulated card runs no kernels")
        rates = self.rates_around_a_stray()
        self.start("beside", self.work.small(self.work.steps_of_a_minute), "0.1", self.work.small_managed)
        p.wait(40, "the neighbour to be hooked", self.hooked)
        self.start("stray", STRAY, "0.05", GIB)
        output = self.wait_end("stray")
        error = next((x for x in output.splitlines() if x.startswith("cuCtxSynchronize")), "no answer")
        code = c.container_state("stray", SPACE)["state"]["terminated"]["exitCode"]
        running = p.phase("beside", SPACE) == "Running"
        result = self.work.result(self.wait_end("beside"))
        ratio = rates[0] / rates[1]
        restarts = c.container_state("beside", SPACE)["restartCount"]
        self.add(
            "an illegal address in one pod",
            "error 700 in that pod; the neighbour's values as bare, its kernels <= 1.05 of before",
            f"exit status {code}, {error}; neighbour: "
            f"{self.compared(result, self.hosted['long'])}, {restarts} restarts, {ratio:.3f} of before"
            f"{'' if running else ' (it had ended by then)'}",
            code == 7 and running and restarts == 0 and ratio <= 1.05 and result.values == self.hosted["long"].values,
        )
        return None

    def rates_around_a_stray(self):
        """Kernels a second of a neighbour that saturates the card, before and behind the stray's end. Training's steps
        would not show 5 %: the host paces them, and a bare run's differ by a fifth within a minute (an H200's machine).
        """
        env = self.tenant_env(2000)
        self.start("steady", ["/app/bin/tenant", "1024", "2000", "40"], "0.1", 2 * GIB, image=TENANT, env=env)
        p.wait(40, "the neighbour to be hooked", self.hooked)
        time.sleep(8)
        begun = time.monotonic()
        self.start("stray", STRAY, "0.05", GIB)
        self.wait_end("stray")
        ended = time.monotonic()
        steady = line(self.wait_end("steady"), "RESULT")
        self.clear()
        return [(done_at(steady, at + 5) - done_at(steady, at)) / 5 for at in (begun - 5, ended + 1)]

    def servers(self):
        """Two of llama.cpp's servers of 0.05, 4 requests at once: each while the other idles, then both.

        All slots of a server are in use: llama.cpp makes a batch of each group of neighbouring slots, so that the
        tokens a second of 4 requests in 8 slots depend on the slots that these got.
        """
        if self.o.simulated:
            return self.note("servers: left out, the simulated card runs no kernels")
        if not (self.work.llama / "bin" / "llama-server").exists():
            return self.note(f"servers: left out, no {self.work.llama}/bin/llama-server: test/gpu/llama_build")
        begin = time.monotonic() + 25
        alone = [begin, begin + SERVED_S + 4]
        together = alone[1] + SERVED_S + 4
        for name, own in zip(("first", "second"), alone):
            levels = [f"{at:.2f},{SLOTS},{SERVED_S}" for at in (own, together)]
            command = ["python3", "-u", "/workloads/serving_schedule.py", *levels, "--", "--engine", "llama"]
            env = {"SERVING_LLAMA": "/llama", "SERVING_LLAMA_LIBRARIES": ":".join(self.work.cuda_libraries())}
            self.start(name, [*command, "--batches", str(SLOTS), "--cache-mib", "512"], "0.05", 5 * GIB, env=env)
        texts = [self.wait_end(name) for name in ("first", "second")]
        levels = [lines(text, "LEVEL") for text in texts]
        if [len(found) for found in levels] != [2, 2]:
            output = [text[-500:] for text in texts]
            raise p.Failed(f"levels that ended: {[len(found) for found in levels]}: {output}")
        late = max(line(text, "READY")["until_ready_s"] for text in texts)
        rate = lambda level: level["tokens"] / level["seconds"]
        one = statistics.mean(rate(found[0]) for found in levels)
        both = [rate(found[1]) for found in levels]
        first_ms = sorted(x for found in levels for x in found[1]["first_ms"])
        answers = [line(text, "READY")["alone"]["digest"] for text in texts]
        self.add(
            "two of llama.cpp's servers at 0.05, tokens a second",
            "together >= 0.8 of one alone, each >= 0.4 of the sum, the same answer to the same prompt",
            f"alone {one:.0f}, together {sum(both):.0f} ({sum(both) / one:.3f}): {both[0]:.0f} and {both[1]:.0f}; "
            f"first token p99 {first_ms[int(len(first_ms) * 0.99)]:.0f} ms; answers "
            f"{'equal' if answers[0] == answers[1] else 'DIFFERENT'}; ready after {late:.0f} s",
            sum(both) >= 0.8 * one and min(both) >= 0.4 * sum(both) and answers[0] == answers[1],
        )
        return None

    def two_cards(self):
        """DDP over NCCL: one container with a share of each of two cards, then two containers with one card each."""
        if self.o.simulated or len(guard.open_nvml().handles) < 2:
            return self.note("two_cards: left out, it needs two real cards")
        bare = self.hosted["two_cards"]
        shm = {"name": "shm", "mountPath": "/dev/shm"}
        one = c.pod("one", self.work, DDP, {"sluice.dev/gpu-fraction": "0.05", "sluice.dev/gpu-count": "2"}, 4 * GIB)
        # More than half of a card each: never on the same one.
        each = {f"gpu-fraction.sluice.dev/rank{i}": "0.6" for i in (0, 1)}
        two = c.pod("two", self.work, DDP, each, 4 * GIB)
        main = two["spec"]["containers"][0]
        main["command"] = [*DDP[:-1], "ddp_one"]
        # Each container has the device node of its own GPU alone: no peer access, and no import of host memory that the
        # driver of the other container made (cuMemCreate): NCCL falls back to /dev/shm.
        main["env"] += [
            {"name": name, "value": value}
            for name, value in (
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "29500"),
                ("NCCL_P2P_DISABLE", "1"),
                ("NCCL_CUMEM_HOST_ENABLE", "0"),
                ("NCCL_DEBUG", "INFO"),
            )
        ]
        ranks = [{**main, "name": f"rank{i}", "env": [*main["env"], {"name": "RANK", "value": str(i)}]} for i in (0, 1)]
        two["spec"]["containers"] = ranks
        for pod, text, containers in ((one, "one container, 0.05 of each", ["main"]),
                                      (two, "two containers, 0.6 of one each", ["rank0", "rank1"])):  # fmt: skip
            for container in pod["spec"]["containers"]:
                container["volumeMounts"] = [*container["volumeMounts"], shm]
            pod["spec"]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory"}})
            name = pod["metadata"]["name"]
            self.takes(name, 8 * GIB)
            p.apply(pod, SPACE)
            self.wait_end(name)
            logs = [c.logs(name, SPACE, "-c", container) for container in containers]
            for container, log in zip(containers, logs):
                (self.out / f"{name}-{container}.log").write_text(log)
            result = self.work.result(logs[0])
            cards = {found["gpu"] for log in logs for found in exit_line.parse(log) if found.get("launches", 0) > 0}
            self.add(
                f"DDP by NCCL on two cards: {text}",
                "values bit for bit as bare, two cards",
                f"{p.phase(name, SPACE)}, {self.compared(result, bare)}, {len(cards)} cards",
                result.values == bare.values and len(cards) == 2,
            )
            self.clear()
        return None
