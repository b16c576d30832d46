"""One agent and the tenants that share a GPU under it, for test/gpu/tenants."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import guard

GIB = 1 << 30
STEP = 64 << 20  # of the agent's budgets: contexts are rounded up to it
KERNEL_US = 2000
OUT = pathlib.Path(os.environ.get("OUT") or pathlib.Path(__file__).resolve().parents[2] / "build" / "gpu")
STARTED = time.monotonic()


# Requests to this machine ignore the environment's proxy.
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def note(text):
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", file=sys.stderr, flush=True)


class SharedGpu:
    """One agent and one GPU, of which it offers `card_gib`. Not thread-safe."""

    def __init__(self, o, config, at_once, spare=0):
        """`spare`: bytes that the simulated GPU has beside the offered ones, as a real one that is larger has."""
        self.o, self.at_once = o, at_once
        self.log_name = getattr(o, "log_name", "tenants.log")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-tenants-"))
        self.env = dict(os.environ)
        self.build = pathlib.Path(o.build).resolve()
        self.gib = o.card_gib
        reserve = 0
        if o.sim:
            sim = self.build / "lib" / "simgpu"
            (self.dir / "card.profile").write_text(
                f"memory = {self.gib * GIB + spare}\nreserve = 0\ncontext_bytes = 0\n"
            )
            reserve = spare
            self.env.update(
                SIMGPU_PROFILE=str(self.dir / "card.profile"),
                SIMGPU_STATE=str(self.dir / "state"),
                SIMGPU_PACE="1",
                SIMGPU_MISUSE="report",
            )
            nvml = ["--nvml", str(sim / "libnvidia-ml.so.1")]
            self.gpu = ["--gpu", "sim"]
        else:
            self.nvml = guard.open_nvml()
            self.allowance = guard.Allowance(self.nvml)
            self.used_before = self.nvml.memory().used
            # The agent itself subtracts the driver's reserve and the processes' contexts.
            contexts = -(-at_once * o.context_bytes // STEP) * STEP
            reserve = self.nvml.memory().total - self.nvml.driver_reserved() - contexts - self.gib * GIB
            config += "attestation: {interval_s: 1}\n"  # so that contexts are counted while the tenants begin
            nvml, self.gpu = [], []
        # Memory for all evictions; set here, since a machine that grows its memory on use reports too little.
        config += f"host_memory: {{bytes: {4 * self.gib}Gi}}\n"
        config += os.environ.get("SHARED_GPU_AGENT", "")  # more lines of the agent's configuration, for a trial
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (self.dir / "agent.yaml").write_text(
            f"reserve: {reserve}\nlog: {{level: warn}}\nmetrics: {{listen: '127.0.0.1:{self.port}'}}\n" + config
        )
        self.log = open(self.dir / "log", "w")
        self.agent = subprocess.Popen(
            [
                "timeout",
                "-k",
                "2",
                "300",
                self.build / "bin" / "sluice-agent",
                "--config",
                self.dir / "agent.yaml",
                "--run-dir",
                self.dir / "run",
                "--alloc-dir",
                self.dir / "alloc",
                *nvml,
            ],
            env=self.env,
            stderr=self.log,
        )
        self.running, self.shares, self.watched = [], {}, None
        end = time.monotonic() + 20
        while not self.status():
            if time.monotonic() > end or self.agent.poll() is not None:
                log = (self.dir / "log").read_text()[-600:]
                self.close()
                raise RuntimeError(f"the agent does not answer: {log}")
            time.sleep(0.05)

    def start(self, live, seconds, fraction=None, busy=None, begin_ms=0, kernel_us=KERNEL_US, env=None, **settings):
        """A tenant whose live bytes are `live` of the GPU; `busy`: (ms on, ms off); `env`: more variables."""
        flags = ["--fraction", f"{fraction:.2f}"] if fraction else []
        for key, value in settings.items():
            flags += ["--" + key.replace("_", "-"), str(value)]
        timing = [str(busy[0]), str(busy[1])] if busy else ["0", "0"]
        work = [int(live * self.gib * 1024), kernel_us, seconds, *timing, begin_ms]
        return self.start_program(
            [self.build / "bin" / "tenant", *work], flags, live * self.gib * GIB, int(seconds * 3 + 40), env=env
        )

    def start_program(self, program, flags, needs, seconds, stdin=subprocess.DEVNULL, env=None):
        """`program` under `sluice run` with these flags, killed after so many seconds. It may allocate an equal share
        of the guard's allowance, as each of the programs that run at once, and is refused if it needs more bytes.
        """
        share, limit = contextlib.ExitStack(), {}
        if not self.o.sim:
            limit = share.enter_context(self.allowance.share(at_once=self.at_once, wait=False))
            if needs > (most := int(limit["SLUICE_MANAGED_LIMIT"])):
                share.close()
                raise guard.Refused(f"a tenant of {needs / GIB:.1f} GiB: its share is {most / GIB:.1f} GiB")
        command = ["timeout", "-k", "2", seconds, self.build / "bin" / "sluice", "run", "--run-dir", self.dir / "run"]
        p = subprocess.Popen(
            [str(c) for c in [*command, *self.gpu, *flags, "--", *program]],
            env={**self.env, **(env or {}), **limit},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=open(self.dir / f"err{len(self.running)}", "w"),
            text=True,
        )
        self.running.append(p)
        self.shares[p] = share
        return p

    def start_bare(self, live, seconds, busy, begin_ms):
        """The same tenant on the simulated GPU without sluice: managed memory and the driver alone."""
        env = {"LD_LIBRARY_PATH": str(self.build / "lib" / "simgpu"), "SLUICE_TENANT_MANAGED": "1"}
        command = [
            "timeout",
            "-k",
            "2",
            str(int(seconds * 3 + 40)),
            self.build / "bin" / "tenant",
            str(int(live * self.gib * 1024)),
            str(KERNEL_US),
            str(seconds),
            str(busy[0]),
            str(busy[1]),
            str(begin_ms),
        ]
        p = subprocess.Popen(
            [str(c) for c in command],
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=open(self.dir / f"err{len(self.running)}", "w"),
            text=True,
        )
        self.running.append(p)
        return p

    def begun(self, *tenants):
        """Waits until their kernels are loaded and their memory is allocated: a context takes a second or more."""
        for p in tenants:
            if p.stdout.readline().strip() != "BEGIN":
                self.result(p)
        note(f"{len(tenants)} began")

    def result(self, p):
        out, _ = p.communicate()
        self.shares.pop(p, contextlib.ExitStack()).close()
        for line in out.splitlines():
            if line.startswith("RESULT "):
                return json.loads(line[7:])
        raise RuntimeError(
            f"a tenant gave no result (status {p.returncode}): "
            + "".join(f.read_text()[-600:] for f in self.dir.glob("err*"))
        )

    def status(self):
        """The agent's status, over HTTP: a process for each request would take the tenants' CPU time."""
        try:
            with HTTP.open(f"http://127.0.0.1:{self.port}/status.json", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return None

    def watch(self, name, period=0.5):
        """Writes the agent's status to OUT/timeline.jsonl until the GPU is closed, a line each `period` seconds, and
        then its events. `name`: of the run, a word of each line.
        """
        self.watched, self.watched_name = threading.Event(), name

        def write():
            with open(OUT / "timeline.jsonl", "a") as file:
                while not self.watched.wait(period):
                    if status := self.status():
                        json.dump({"run": name, "s": round(time.monotonic() - STARTED, 2), **status}, file)
                        file.write("\n")

        threading.Thread(target=write, daemon=True).start()

    def counted(self):
        """By the agent's metrics, of all tenants: how long launches have needed a compute token (token_seconds), and
        launches. Raises OSError if it does not answer."""
        with HTTP.open(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        names = {"token_seconds": "sluice_gpu_tokens_demanded_seconds_total{", "launches": "sluice_launches_total{"}
        return {k: sum(float(s.split()[-1]) for s in lines if s.startswith(name)) for k, name in names.items()}

    def close(self):
        if self.watched:
            self.watched.set()
            command = [self.build / "bin" / "sluice", "events", "-o", "json", "--run-dir", self.dir / "run"]
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError), open(OUT / "timeline.jsonl", "a") as file:
                done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
                json.dump({"run": self.watched_name, **json.loads(done.stdout)}, file)
                file.write("\n")
        for p in self.running:
            p.terminate()
        for p in (*self.running, self.agent):
            if p is self.agent:
                p.terminate()
            try:
                p.wait(8)  # timeout(1) kills after 2 s
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            self.shares.pop(p, contextlib.ExitStack()).close()
        with open(OUT / self.log_name, "a") as log:
            for part in sorted(self.dir.glob("err*")) + [self.dir / "log"]:
                log.write(
                    "".join(
                        f"[{time.monotonic() - STARTED:5.1f} s] {part.name}: {line}\n"
                        for line in part.read_text().splitlines()[-40:]
                    )
                )
        if not self.o.sim and guard.settle(self.nvml) > self.used_before + GIB:
            raise RuntimeError("the memory of the ended tenants is not released")
        if os.environ.get("KEEP"):
            print("kept", self.dir, file=sys.stderr)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
