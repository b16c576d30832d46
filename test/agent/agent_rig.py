"""Runs a real agent with real processes: the rig of the *_test.py here. Standard library only.

A test is a function `def name(a):` with the decorator test(). run() is the main program of a script:
SCRIPT BIN_DIR TEST_DIR [name...].
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
from harness import SKIP, Skipped, wait_for  # noqa: E402

BIN, HERE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-%012d"
MAGIC, FRAME = 0x43494C53, 256


# ctest waits for the test's output: a program that outlives its killed parent must not keep it open.
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def at_once(pid, threads=None):
    """Lets a process run as soon as it has work, so that its own work is judged, not how busy the machine is. Its
    children do not run so. `threads`: these alone. False: not permitted here.
    """
    try:
        for thread in threads or os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(20))
    except OSError:
        return False
    return True


class Hook:
    def __init__(self, sock, wait_ms=3000):
        self.p = subprocess.Popen(
            [HERE / "fake_hook", str(sock), str(wait_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.p.stdout:
            self.lines.append(line.split())

    def command(self, text):
        os.write(self.p.stdin.fileno(), (text + "\n").encode())  # one write: several threads may send commands

    def seen(self, word, count=1):
        return [line for line in list(self.lines) if line and line[0] == word][count - 1 :]

    def expect(self, word, count=1):
        return wait_for(f"{word} from the hook; so far {self.lines[-5:]}", lambda: self.seen(word, count))[0]

    def budget(self):
        b = self.seen("budget")
        return int(b[-1][2]) if b else None

    def last(self):
        return self.seen("budget")[-1]

    def end(self, how=signal.SIGKILL):
        self.p.send_signal(how)
        self.p.wait()


class Agent:
    """An agent in a temporary folder, with a fake GPU of 8 GiB."""

    def __init__(self, config="", gpus=1, env=()):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-test-"))
        self.config, self.gpus, self.env, self.p, self.hooks = config, gpus, dict(env), None, []
        (self.dir / "config.yaml").write_text(config)
        self.start()

    def start(self):
        env = dict(os.environ, FAKE_NVML_GPUS=str(self.gpus), FAKE_NVML_PROCESSES=str(self.dir / "gpu-processes"))
        env.update(self.env)
        self.log = open(self.dir / "log", "a")
        self.p = subprocess.Popen(
            [
                BIN / "sluice-agent",
                "--config",
                self.dir / "config.yaml",
                "--run-dir",
                self.dir / "run",
                "--alloc-dir",
                self.dir / "alloc",
                "--nvml",
                HERE / "libfake-nvml.so.1",
            ],
            env=env,
            stderr=self.log,
        )
        wait_for("the agent's socket", lambda: self.status(check=False))

    def kill(self, how=signal.SIGKILL):
        self.p.send_signal(how)
        return self.p.wait()

    def sanitized(self):
        return "san.so" in open(f"/proc/{self.p.pid}/maps").read()

    def needs_hook(self):
        if self.sanitized() and not (BIN.parent / "lib" / "libsluice.so").exists():
            raise Skipped("`sluice run` preloads libsluice.so, which a sanitizer's build lacks")

    def cli(self, *args, check=True, env=()):
        r = subprocess.run(
            [BIN / "sluice", args[0], "--run-dir", self.dir / "run", *args[1:]],
            capture_output=True,
            text=True,
            env={**os.environ, **dict(env)},
        )
        if check:
            assert r.returncode == 0, (args, r.returncode, r.stderr)
        return r

    def status(self, check=True):
        r = self.cli("status", "-o", "json", check=check)
        return json.loads(r.stdout) if r.returncode == 0 else None

    def allocation(self, id):
        return next((a for a in self.status()["allocations"] if a["id"] == id), None)

    def events(self, kind):
        return [e for e in json.loads(self.cli("events", "-o", "json").stdout)["events"] if e["kind"] == kind]

    def allocate(self, id, units, gpu=0, wait=True, **settings):
        d = self.dir / "alloc" / id
        d.mkdir(parents=True)
        settings = {k.replace("_", "-"): v for k, v in settings.items()}
        text = json.dumps(
            {
                "version": 1,
                "id": id,
                "gpus": [{"uuid": UUID % gpu, "units": units}],
                "settings": settings,
                "pod": "p-" + id,
                "namespace": "ns",
                "container": "c",
            }
        )
        (d / ".tmp").write_text(text)
        os.rename(d / ".tmp", d / "allocation.json")
        if wait:
            wait_for("socket of " + id, lambda: (d / "agent.sock").exists())
        return d / "agent.sock"

    def hook(self, sock):
        h = Hook(sock)
        self.hooks.append(h)
        h.expect("started")
        return h

    def ledger(self):
        """Sum of budgets in force, and the first GPU."""
        s = self.status()
        return sum(g["budget_bytes"] for a in s["allocations"] for g in a["gpus"]), s["gpus"][0]

    def close(self):
        for h in self.hooks:
            if h.p.poll() is None:
                h.end()
        if self.p.poll() is None:
            self.kill(signal.SIGTERM)
        shutil.rmtree(self.dir, ignore_errors=True)


TESTS = []


def test(config="", gpus=1, env=()):
    def wrap(f):
        TESTS.append((f.__name__, f, config, gpus, env))
        return f

    return wrap


def metrics_port(agent):
    def ports():
        return [line.split()[-1] for line in (agent.dir / "log").read_text().split("\n") if "metrics at port" in line]

    return int(wait_for("the port", ports)[0])


def read_metrics(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()


def run():
    names, failed, skipped = sys.argv[3:], 0, False
    for name, f, config, gpus, env in TESTS:
        if names and name not in names:
            continue
        agent = Agent(config, gpus, env)
        try:
            f(agent)
            print("ok      " + name, flush=True)
        except Skipped as why:
            skipped = True
            print(f"SKIPPED {name}: {why}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print("FAILED  " + name, flush=True)
            print((agent.dir / "log").read_text()[-3000:], flush=True)
        finally:
            agent.close()
    if names and not any(t[0] in names for t in TESTS):
        failed = 1
    sys.exit(1 if failed else SKIP if skipped else 0)
