"""A real agent of a simulated GPU, and processes of its allocations that are led by commands."""

import contextlib
import json
import pathlib
import signal
import subprocess
import tempfile
import time

from engine_rig import GIB, built, environment, expect, gpu_uuid, scenarios_program

OUT_OF_MEMORY = "2"


class Process:
    """A process of the container, led by commands."""

    def __init__(self, program, env):
        self.p = subprocess.Popen(program, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.p.stdout.readline().strip()

    def __call__(self, command):
        self.p.stdin.write(command + "\n")
        self.p.stdin.flush()
        return self.p.stdout.readline().strip()

    def fill(self, mib):
        """MiB that could be allocated until the limit refused more."""
        got = 0
        while (answer := self(f"allocate {mib}")) == "ok":
            got += mib
            assert got < 1 << 20
        expect(answer == OUT_OF_MEMORY, "the driver's own code", answer)
        return got

    def kill(self):
        self.p.kill()
        self.p.wait()

    def memory(self):
        return [int(n) for n in self("memory").split()]


class Node:
    """A real agent of a simulated GPU of 8 GiB, and processes of its allocations."""

    def __init__(self, folder, profile, variables):
        self.folder, self.processes, self.profile = pathlib.Path(folder), [], profile
        self.more = {"SIMGPU_STATE": str(self.folder / "card"), **variables}
        self.start()

    def start(self):
        self.agent = subprocess.Popen(
            [
                *(built("bin", "sluice-agent"), "--run-dir", self.folder / "run", "--alloc-dir", self.folder / "alloc"),
                *("--nvml", built("lib", "simgpu", "libnvidia-ml.so.1"), "--quiet"),
            ],
            env=environment(None, self.profile, more=self.more),
        )

    def kill_agent(self):
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait()

    def allocate(self, name, units=25, gpus=1, **settings):
        folder = self.folder / "alloc" / name
        folder.mkdir(parents=True)
        first = gpu_uuid().decode()
        shares = [{"uuid": first[:-1] + str(i), "units": units} for i in range(gpus)]
        spec = {"version": 1, "id": name, "gpus": shares}
        spec["settings"] = {key.replace("_", "-"): value for key, value in settings.items()}
        (folder / ".tmp").write_text(json.dumps(spec))
        (folder / ".tmp").rename(folder / "allocation.json")
        end = time.monotonic() + 20
        while not (folder / "agent.sock").exists():
            expect(time.monotonic() < end, "the agent serves the allocation")
            time.sleep(0.01)

    def command(self, *words):
        return [built("bin", "sluice"), words[0], "--run-dir", self.folder / "run", *words[1:]]

    def cli(self, *words, status=0):
        """Standard output and error of `sluice`. `status` None accepts any exit status."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=60)
        expect(status in (None, done.returncode), f"sluice {' '.join(words)}: status {done.returncode}", done.stderr)
        return done.stdout + done.stderr

    def status(self, name):
        """What `sluice status` says about an allocation."""
        found = json.loads(self.cli("status", "-o", "json"))
        return next(a for a in found["allocations"] if a["id"] == name)

    def env(self, name):
        # The budget is the agent's; the variable would have another process think that it has none.
        socket = {"SLUICE_SOCKET": str(self.folder / "alloc" / name / "agent.sock")}
        return environment(2 * GIB, self.profile, more={**self.more, **socket})

    def process(self, name, scenario="led_by_commands", **variables):
        made = Process([scenarios_program(), scenario], {**self.env(name), **variables})
        self.processes.append(made)
        expect(made.first == "started", "the process starts", made.first)
        return made


@contextlib.contextmanager
def node(profile="card-8g", **variables):
    with tempfile.TemporaryDirectory(prefix="slc-") as folder:
        made = Node(folder, profile, variables)
        # A new agent first waits a second for processes of the one before it, and admits no others meanwhile.
        time.sleep(1.5)
        try:
            yield made
        finally:
            for process in made.processes:
                process.kill()
            made.kill_agent()
