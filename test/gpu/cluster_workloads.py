"""The workloads of the pods of test/gpu/cluster: PyTorch on a real card, recorded trainings on the simulated one.

A workload gives the commands of pods, with `on_host` the same programs on the machine, and `result(text)` of their
output: values to compare, milliseconds a step.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig

import guard
import host_image

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GIB = 1 << 30
# Live bytes of 1.5 times the budget: 6.2 GiB for 0.05 of an H100, 6.6 GiB for 0.03 of a card of 140 GB. Predictions are
# settled after the first steps.
LARGE = {"0.05": ["transformer", "--layers", "13"], "0.03": ["transformer", "--layers", "14"]}
SKIP = 20
SMALL = ["transformer", "--width", "512", "--layers", "12", "--batch", "4", "--length", "512"]


class Result:
    """`spent`: what the process says of its own CPU time."""

    def __init__(self, values, steps, live=0, spent=None):
        self.values, self.steps, self.live, self.spent = values, steps, live, spent or {}

    @property
    def step(self):
        return statistics.median(self.steps[SKIP:] or self.steps)


class Missing(Exception):
    pass


class RealWorkloads:
    host_pid = False
    image = host_image.NAME
    large_managed, small_managed = 9 * GIB, 3 * GIB
    train_seconds = 90

    def __init__(self, o, pack):
        self.pack, self.llama = pack, pathlib.Path(o.llama).resolve()
        self.fraction = "0.05" if guard.open_nvml().memory().total < 100 * GIB else "0.03"

    def images(self, folder):
        host_image.make(folder / "host.tar")
        return [folder / "host.tar"]

    def large(self):
        return self.trained(60)

    def trained(self, steps):
        return ["python3", "-u", "/workloads/train.py", *LARGE[self.fraction], "--steps", str(steps)]

    def small(self, steps):
        return ["python3", "-u", "/workloads/train.py", *SMALL, "--steps", str(steps)]

    steps_of_a_minute = 1200

    def without_preload(self, command):
        return ["/usr/bin/env", "-u", "LD_PRELOAD", *command]

    def env(self):
        return {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "PYTHONPATH": "/workloads",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
        }

    def volumes(self):
        found = host_image.volumes()
        return {**found, "llama": (str(self.llama), "/llama")} if self.llama.exists() else found

    def cuda_libraries(self):
        """Folders of PyTorch's dependencies, which the pods see at the same paths."""
        packages = pathlib.Path(sysconfig.get_path("purelib"))
        return sorted({str(f.parent) for f in packages.glob("nvidia/**/lib*.so*")})

    def on_host(self, command, _):
        """The same program for the machine itself."""
        program = HERE / "workloads" / os.path.basename(command[2])
        return [sys.executable, "-u", str(program), *command[3:]], {
            "PYTHONPATH": str(HERE / "workloads"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def sluice(self):
        return self.pack / "host/bin/sluice"

    def sluice_run(self):
        return []

    def values(self):
        """The chart's."""
        root = next(
            (
                f
                for f in ("/usr/local/nvidia", "/usr/lib/x86_64-linux-gnu")
                if os.path.exists(f"{f}/lib64/libcuda.so.1")
            ),
            "/",
        )
        nvml = subprocess.run(
            "ldconfig -p | sed -n 's/.*libnvidia-ml.so.1 .*x86-64.* => //p' | head -1",
            shell=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        return {"driver.root": root, "driver.nvml": nvml}

    def result(self, text):
        for line in text.splitlines():
            if line.startswith("RESULT "):
                got = json.loads(line[7:])
                if "skipped" in got:
                    raise Missing(got["skipped"])
                return Result(got["values"], got.get("step_ms", []), got["live_bytes"], got.get("spent"))
        raise Missing("no RESULT line: " + text[-600:])


class SimulatedWorkloads:
    """The recorded transformer, 5.8 GiB live. Its values are the simulated driver's launches, misuses, races."""

    host_pid = True  # the simulated driver sees by it whether another tenant sleeps
    image = "sluice.test/workload:1"
    fraction = "0.05"
    large_managed, small_managed = 9 * GIB, 9 * GIB
    train_seconds = 120

    def __init__(self, o, pack):
        self.pack, self.build = pack, pathlib.Path(o.simulated).resolve()
        self.trace = ROOT / "experiments/traces/transformer.sltrace"

    def images(self, folder):
        subprocess.run(
            [ROOT / "test/cluster/workload_image", self.build, self.trace, folder / "workload.tar"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return [folder / "workload.tar"]

    def large(self):
        return ["/app/bin/train", "--json", "--warm-up", "3", "--hold", "10", "/app/model.trace"]

    def trained(self, _):
        """The recorded steps, however many. The program ends before the agent of `sluice run` has counted its context,
        so pods have 26 MiB less here.
        """
        return ["/app/bin/train", "--json", "--warm-up", "3", "/app/model.trace"]

    def small(self, steps):
        return ["/app/bin/train", "--json", "--hold", str(steps // 10), "/app/model.trace"]

    steps_of_a_minute = 450  # the process stays a tenth as many seconds after the recorded steps

    def without_preload(self, command):
        return ["/app/bin/env", "-u", "LD_PRELOAD", *command]

    def env(self):
        return {}

    def volumes(self):
        return {}

    def on_host(self, command, name):
        card = pathlib.Path(os.environ["CLUSTER_GPU"])
        state = card / f"host-state-{name}"
        state.unlink(missing_ok=True)
        program = [str(self.build / "bin/sluice-replay"), *command[1:-1], str(self.trace)]
        if "--hold" in program:
            del program[program.index("--hold") : program.index("--hold") + 2]
        return program, {
            "LD_LIBRARY_PATH": str(self.build / "lib/simgpu"),
            "SIMGPU_PROFILE": str(card / "profile"),
            "SIMGPU_STATE": str(state),
        }

    def sluice(self):
        return self.build / "bin/sluice"

    def sluice_run(self):
        return ["--gpu", "sim"]

    def values(self):
        card = os.environ["CLUSTER_GPU"]
        return {
            "driver.root": f"{card}/lib",
            "driver.deviceRoot": f"{card}/dev",
            "driver.nvml": f"{card}/lib/libnvidia-ml.so.1",
            "policy.privileged": "warn",  # its pods see the node's processes
        }

    def result(self, text):
        for line in text.splitlines():
            if line.startswith("{"):
                got = json.loads(line)
                counted = got["simulated"]
                return Result([got["launches"], counted["misuses"], counted["races"]], got["steps_ms"])
        raise Missing("no line of figures: " + text[-600:])


def of(o, pack):
    return SimulatedWorkloads(o, pack) if o.simulated else RealWorkloads(o, pack)
