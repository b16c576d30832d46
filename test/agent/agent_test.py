#!/usr/bin/env python3
"""The agent with real processes: agent_test.py BIN_DIR TEST_DIR [name...]. Standard library only."""
import json, os, pathlib, queue, random, re, select, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time, traceback

BIN, HERE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-%012d"
MAGIC, FRAME = 0x43494C53, 256


def wait_for(what, condition, seconds=15):
    """Timing decides nothing but how long a failure takes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("not seen within %s s: %s" % (seconds, what))


# A program that outlives its killed parent must not hold the test's output open: ctest would wait for it.
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Hook:
    def __init__(self, sock, wait_ms=3000):
        self.p = subprocess.Popen([HERE / "fake_hook", str(sock), str(wait_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, bufsize=1)
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.p.stdout:
            self.lines.append(line.split())

    def say(self, text):
        os.write(self.p.stdin.fileno(), (text + "\n").encode())  # one write: threads may speak at once

    def seen(self, word, count=1):
        return [l for l in list(self.lines) if l and l[0] == word][count - 1:]

    def expect(self, word, count=1):
        return wait_for("%s from the hook; it said %s" % (word, self.lines[-5:]), lambda: self.seen(word, count))[0]

    def budget(self):
        b = self.seen("budget")
        return int(b[-1][2]) if b else None

    def last(self):
        return self.seen("budget")[-1]

    def end(self, how=signal.SIGKILL):
        self.p.send_signal(how)
        self.p.wait()


class Agent:
    """An agent in a temporary folder, with a fake card of 8 GiB."""

    def __init__(self, config="", gpus=1):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-test-"))
        self.config, self.gpus, self.p, self.hooks = config, gpus, None, []
        (self.dir / "config.yaml").write_text(config)
        self.start()

    def start(self):
        env = dict(os.environ, FAKE_NVML_GPUS=str(self.gpus), FAKE_NVML_PROCESSES=str(self.dir / "gpu-processes"))
        self.log = open(self.dir / "log", "a")
        self.p = subprocess.Popen([BIN / "sluice-agent", "--config", self.dir / "config.yaml", "--run-dir", self.dir / "run",
                                   "--alloc-dir", self.dir / "alloc", "--nvml", HERE / "libfake-nvml.so.1"], env=env, stderr=self.log)
        wait_for("the agent's socket", lambda: self.status(check=False))

    def kill(self, how=signal.SIGKILL):
        self.p.send_signal(how)
        return self.p.wait()

    def sanitized(self):
        return "san.so" in open("/proc/%d/maps" % self.p.pid).read()

    def needs_hook(self):
        if self.sanitized() and not (BIN.parent / "lib" / "libsluice.so").exists():
            raise Skipped("`sluice run` preloads libsluice.so, which no sanitizer's build has")

    def cli(self, *args, check=True, env={}):
        r = subprocess.run([BIN / "sluice", args[0], "--run-dir", self.dir / "run", *args[1:]], capture_output=True, text=True, env={**os.environ, **env})
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
        text = json.dumps({"version": 1, "id": id, "gpus": [{"uuid": UUID % gpu, "units": units}], "settings": settings,
                           "pod": "p-" + id, "namespace": "ns", "container": "c"})
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
        """Sum of budgets in force, from the agent; and the card."""
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


def test(config="", gpus=1):
    def wrap(f):
        TESTS.append((f.__name__, f, config, gpus))
        return f
    return wrap


@test()
def budget_is_fraction_of_card(a):
    h = a.hook(a.allocate("one", 50, memory_factor="80", prefetch="launch"))
    b = h.expect("budget")
    assert b[1] == UUID % 0 and int(b[2]) == 4 * GIB and int(b[3]) == 4 * GIB, b
    assert b[6:9] == ["500000", "1000000", "80"] and b[9] == "1", b
    one = a.allocation("one")
    assert one["hook_state"] == "attached" and one["processes"][0]["pid"] == h.p.pid, one
    assert one["processes"][0]["hook_version"] == "0.0.0-fake"


@test()
def states_before_and_after(a):
    sock = a.allocate("one", 50)
    assert a.allocation("one")["hook_state"] == "expected"
    h = a.hook(sock)
    h.say("live %d" % GIB)
    wait_for("live bytes", lambda: a.allocation("one")["processes"][0]["gpus"][0]["live_bytes"] == GIB)
    h.end()
    wait_for("release", lambda: not a.allocation("one")["processes"])
    (sock.parent / "allocation.json").unlink()
    wait_for("the allocation to go", lambda: a.allocation("one") is None)
    assert not sock.exists()


@test()
def killed_parent_beside_living_child_is_released(a):
    h = a.hook(a.allocate("one", 50))
    h.say("fork")
    child = int(h.expect("child")[1])
    h.end()
    start = time.monotonic()
    wait_for("release", lambda: not a.allocation("one")["processes"], 5)
    took = time.monotonic() - start
    os.kill(child, signal.SIGKILL)
    assert took < 1.0, took


@test()
def raw_cloned_child_does_not_hold_the_socket(a):
    """A child made without fork handlers keeps the socket open: the agent watches the process itself."""
    sock = a.allocate("one", 50)
    code = ("import socket,struct,sys,ctypes,os,time\n"
            "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[1])\n"
            "s.send(struct.pack('<IBBHQ',0x43494C53,1,0,1,1).ljust(256,b'\\0'));s.recv(256);s.recv(256)\n"
            "pid=ctypes.CDLL(None).syscall(56,17,0,0,0,0)\n"  # clone(SIGCHLD)
            "print(pid,flush=True) if pid else None\n"
            "time.sleep(60)\n")
    p = subprocess.Popen([sys.executable, "-c", code, str(sock)], stdout=subprocess.PIPE, text=True)
    child = int(p.stdout.readline())
    wait_for("attach", lambda: a.allocation("one")["processes"])
    p.kill()
    p.wait()
    wait_for("release", lambda: not a.allocation("one")["processes"], 5)
    os.kill(child, 0)  # lives
    os.kill(child, signal.SIGKILL)


@test()
def forked_child_attaches_by_itself(a):
    h = a.hook(a.allocate("one", 50))
    h.say("attach-child")
    wait_for("the child's word", lambda: ["child", "attached"] in h.lines)
    assert len(a.allocation("one")["processes"]) == 2
    a.hooks.append(h)
    for p in a.allocation("one")["processes"]:
        os.kill(p["pid"], signal.SIGKILL)


@test()
def idle_guarantee_is_lent_and_called_back(a):
    x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.say("live %d" % (6 * GIB))
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    total, card = a.ledger()
    assert total <= 8 * GIB and card["lent_bytes"] > 0, (total, card)
    x.say("live %d" % (4 * GIB))
    wait_for("the owner's budget", lambda: x.budget() >= 4 * GIB)
    assert y.budget() <= 4 * GIB
    assert a.ledger()[1]["debt_bytes"] == 0


@test(config="lending: {callback_late_ms: 200}\n")
def silent_borrower_is_debt_and_owner_goes_on(a):
    x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.say("live %d" % (6 * GIB))
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    y.p.send_signal(signal.SIGSTOP)
    x.say("live %d" % (4 * GIB))
    wait_for("debt", lambda: a.ledger()[1]["debt_bytes"] > 0)
    wait_for("late event", lambda: a.events("callback late"))
    assert x.budget() >= GIB // 4  # the owner was never below its floor
    y.p.send_signal(signal.SIGCONT)
    wait_for("the owner's budget", lambda: x.budget() >= 4 * GIB)
    y.p.send_signal(signal.SIGSTOP)
    y.end()
    wait_for("release", lambda: not a.allocation("y")["processes"])


@test()
def agent_killed_comes_back_with_the_same_ledger(a):
    x, y = a.hook(a.allocate("x", 50)), a.hook(a.allocate("y", 50))
    y.say("live %d" % (6 * GIB))
    wait_for("the loan", lambda: y.budget() > 5 * GIB)
    a.cli("set", "y", "memory-factor=70")
    before = a.ledger()[0]
    for _ in range(3):
        a.kill()
        a.start()
        wait_for("both back", lambda: all(len(s["processes"]) == 1 for s in a.status()["allocations"]))
        total, card = a.ledger()
        assert total <= 8 * GIB, total
        wait_for("the same ledger", lambda: a.ledger()[0] == before and y.budget() > 5 * GIB)
        assert a.allocation("y")["processes"][0]["gpus"][0]["live_bytes"] == 6 * GIB
        assert a.allocation("y")["settings"]["memory-factor"] == "70"
    z = a.hook(a.allocate("z", 0 or 1))
    assert z.expect("budget")
    generations = [int(l[11]) for l in y.seen("budget")]
    assert generations == sorted(generations)


@test()
def live_set(a):
    h = a.hook(a.allocate("one-abc", 50))
    a.cli("set", "one", "gpu-memory=2Gi", "log-level=DEBUG", "compute-limit=0.5")
    wait_for("new budget", lambda: h.budget() == 2 * GIB and h.last()[10] == "3" and h.last()[7] == "500000")
    r = a.cli("set", "one", "memory-factor=0", check=False)
    assert r.returncode == 2 and "memory-factor: '0' is not accepted; accepted: a whole number from 1 to 100" in r.stderr, r
    r = a.cli("set", "two", "memory-factor=50", check=False)
    assert r.returncode == 2 and "id: 'two' is unknown; accepted: one-abc" in r.stderr, r
    r = a.cli("set", "", "memory-factor=50", check=False)  # begins every id, and means none
    assert r.returncode == 2 and "id: '' is unknown; accepted: one-abc" in r.stderr, r
    r = a.cli("set", "one", "visible-memory=limit", check=False)
    assert r.returncode == 2 and "cannot change" in r.stderr, r
    r = a.cli("set", "one", "gpu-memory=9Gi", check=False)
    assert r.returncode == 2 and "gpu-memory: '9Gi' is not accepted; accepted: at most 8Gi" in r.stderr, r
    r = a.cli("set", "one", "gpu-fraction=2", check=False)
    assert r.returncode == 2 and "accepted: 0.01 to 1, as one-abc has 1 GPU" in r.stderr, r
    r = a.cli("set", "one", "gpu-fraction=0.9")
    assert "gpu-fraction=0.9\n" in r.stdout and "more than its 50 units of sluice.dev/gpu-percent" in r.stderr, r
    wait_for("the fraction, of time too", lambda: h.budget() == 8 * GIB * 90 // 100 and h.last()[6] == "500000")
    r = a.cli("set", "one", "gpu-fraction=0.4")
    assert r.stderr == "", r
    wait_for("the smaller one", lambda: h.budget() == 8 * GIB * 40 // 100 and h.last()[6] == "400000")
    a.hook(a.allocate("other", 50))
    r = a.cli("set", "one", "gpu-fraction=0.6", check=False)
    assert r.returncode == 2 and "accepted: at most 0.5" in r.stderr, r
    row = next(line for line in a.cli("status").stdout.splitlines() if line.startswith("one-abc"))
    assert re.search(r" attached +50 +40% +3\.2 GiB ", row), row  # the units, what was set, what that is
    r = a.cli("set", "one", "gpu-fraction=", "log-level=")
    assert r.stdout == "compute-limit=0.5\n", r
    wait_for("its own share", lambda: h.budget() == 4 * GIB and h.last()[10] != "3")
    r = a.cli("set", "one", "log-level=", check=False)
    assert r.returncode == 2 and "log-level: nothing was set that an empty value could take away; set: compute-limit\n" in r.stderr, r
    assert h.p.poll() is None


@test()
def changed_configuration_is_taken_live_and_a_bad_one_is_not(a):
    h = a.hook(a.allocate("one", 50))
    (a.dir / "config.yaml").write_text("clients:\n  - {id: one, request: 0.2, limit: 0.6, memory: 1Gi}\n")
    wait_for("the file's budget", lambda: h.budget() == GIB and h.last()[6:8] == ["200000", "600000"])
    (a.dir / "config.yaml").write_text("clients:\n  - id: one\n    memory: 2Gii\n")
    error = wait_for("the error", lambda: a.status()["config_error"])
    assert "config.yaml:3: clients[0].memory: '2Gii' is not accepted" in error, error
    assert h.budget() == GIB
    (a.dir / "new").write_text("clients: [{id: 'ns/p-*/c', memory: 3Gi}]\n")
    os.rename(a.dir / "new", a.dir / "config.yaml")
    wait_for("the third budget", lambda: h.budget() == 3 * GIB)
    assert a.status()["config_error"] == ""


@test()
def other_versions(a):
    sock = str(a.allocate("one", 50))
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sock)
    s.send(struct.pack("<IBBHQ", MAGIC, 2, 0, 1, 1).ljust(FRAME, b"\0"))
    refuse = s.recv(FRAME)
    assert struct.unpack_from("<H", refuse, 6)[0] == 3 and b"protocol 1.0, the hook 2.0" in refuse, refuse
    assert s.recv(FRAME) == b""
    assert a.allocation("one")["hook_state"] == "refused" and a.events("refused")
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a newer minor version
    s.connect(sock)
    s.send(struct.pack("<IBBHQ", MAGIC, 1, 9, 1, 1).ljust(FRAME, b"\xff"))
    assert struct.unpack_from("<H", s.recv(FRAME), 6)[0] == 2


@test()
def malformed_frames(a):
    """100,000 frames: random, truncated, oversized, every type, before and after HELLO. Beside them one honest process."""
    sock, seed = str(a.allocate("one", 50)), int(os.environ.get("SLUICE_SEED", "20261121"))
    h = a.hook(a.allocate("two", 50))
    rnd = random.Random(seed)
    sent = 0
    while sent < 100000:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(sock)
        s.settimeout(5)
        try:
            if rnd.random() < 0.5:
                s.send(struct.pack("<IBBHQ", MAGIC, 1, 0, 1, 1) + rnd.randbytes(FRAME - 16))
            for _ in range(200):
                kind = rnd.randrange(5)
                body = rnd.randbytes(FRAME)
                if kind == 0:
                    body = body[:rnd.randrange(1, FRAME)]
                elif kind == 1:
                    body = body * rnd.randrange(2, 40)
                elif kind >= 3:
                    body = struct.pack("<IBBHQ", MAGIC, 1, 0, rnd.choice([5, 8, 9, 11, rnd.randrange(16)]), sent) + body[16:]
                sent += 1
                s.send(body)
        except OSError:
            pass
        s.close()
    assert a.p.poll() is None, "the agent ended (seed %d)" % seed
    a.cli("set", "two", "memory-factor=33")
    wait_for("the honest process is served", lambda: h.last()[8] == "33")
    wait_for("all released", lambda: not a.allocation("one")["processes"])
    assert len(os.listdir("/proc/%d/fd" % a.p.pid)) < 60


@test()
def a_client_that_never_reads(a):
    sock = str(a.allocate("one", 50))
    h = a.hook(a.allocate("two", 50))
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deaf.connect(sock)
    deaf.send(struct.pack("<IBBHQ", MAGIC, 1, 0, 1, 1).ljust(FRAME, b"\0"))
    wait_for("attach", lambda: a.allocation("one")["processes"])
    for i in range(60):
        a.cli("set", "one", "memory-factor=%d" % (i % 100 + 1))
    a.cli("set", "two", "memory-factor=44")
    wait_for("the other is served", lambda: h.last()[8] == "44")
    last = None
    deaf.settimeout(2)
    try:
        while True:
            frame = deaf.recv(FRAME)
            if struct.unpack_from("<H", frame, 6)[0] == 4:
                last = frame
            if last and last[16 + 48 + 5 * 8 + 2 * 4] == 60:
                break
    except socket.timeout:
        pass
    factor = 16 + 48 + 5 * 8 + 2 * 4
    assert last[factor] == 60, list(last[100:130])  # the newest value is there, whatever was dropped between


@test()
def killed_at_every_point_of_attach(a):
    sock = str(a.allocate("one", 50))
    for i in range(40):
        p = subprocess.Popen([HERE / "fake_hook", sock], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        time.sleep(0.0005 * i)
        p.kill()
        p.wait()
    wait_for("all released", lambda: not a.allocation("one")["processes"])
    h = a.hook(pathlib.Path(sock))
    assert h.budget() == 4 * GIB


@test()
def broken_allocations_are_said_and_skipped(a):
    for name, text in {"bad-json": "{", "wrong-id": '{"version":1,"id":"x","gpus":[{"uuid":"g","units":1}]}',
                       "no-gpu": '{"version":1,"id":"no-gpu","gpus":[{"uuid":"GPU-none","units":1}]}',
                       "bad-value": json.dumps({"version": 1, "id": "bad-value", "gpus": [{"uuid": UUID % 0, "units": 1}],
                                                "settings": {"prefetch": "on"}})}.items():
        (a.dir / "alloc" / name).mkdir()
        (a.dir / "alloc" / name / "allocation.json").write_text(text)
    wait_for("four refusals", lambda: len({e["allocation"] for e in a.events("refused")}) == 4)
    assert any("settings.prefetch: 'on' is not accepted" in e["text"] for e in a.events("refused"))
    assert a.hook(a.allocate("good", 50)).budget() == 4 * GIB


@test()
def host_memory_is_shared_out_and_capped(a):
    (a.dir / "config.yaml").write_text("host_memory: {bytes: 10Gi}\n")
    wait_for("the cap", lambda: a.status()["host_limit_bytes"] == 10 * GIB)
    x, y = a.hook(a.allocate("x", 75)), a.hook(a.allocate("y", 25))
    wait_for("shares", lambda: int(x.last()[5]) == 15 * GIB // 2 and int(y.last()[5]) == 5 * GIB // 2)


@test()
def sluice_run_end_to_end(a):
    a.needs_hook()
    out = a.cli("run", "--memory", "2Gi", "--", "sh", "-c", "echo $SLUICE_GPU_MEMORY; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"))
    assert out.stdout.split("\n")[0] == "2Gi" and any(l.startswith("budget") and l.split()[2] == str(2 * GIB) for l in out.stdout.split("\n")), out
    shell = {"SLUICE_GPU_FRACTION": "0.25", "SLUICE_LOG_LEVEL": "INFO"}
    say = ["--", "sh", "-c", "echo $SLUICE_GPU_FRACTION,$SLUICE_GPU_MEMORY,$SLUICE_LOG_LEVEL; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook")]
    for flags, said, budget in (([], "0.25,,INFO", 2), (["--fraction", "0.5", "--log-level", "DEBUG"], "0.5,,DEBUG", 4), (["--memory", "1Gi"], ",1Gi,INFO", 1)):
        out = a.cli("run", *flags, *say, env=shell).stdout.split("\n")
        assert out[0] == said and any(l.startswith("budget") and l.split()[2] == str(budget * GIB) for l in out), (flags, out)
    r = a.cli("run", "--", "true", check=False, env={"SLUICE_GPU_FRACTION": "1.5"})
    assert r.returncode == 2 and "SLUICE_GPU_FRACTION: '1.5' is not accepted" in r.stderr, r
    assert a.cli("run", "--fraction", "0.5", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert a.cli("run", "--fraction", "0.5", "--", "sh", "-c", "kill -9 $$", check=False).returncode == 137
    assert a.cli("run", "--", "/no/such/program", check=False).returncode == 127
    wait_for("allocations end with their programs", lambda: not a.status()["allocations"])
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--", "sleep", "60"], **QUIET)
    wait_for("its allocation", lambda: a.status()["allocations"])
    p.send_signal(signal.SIGTERM)
    assert p.wait() == 128 + signal.SIGTERM
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--", "sleep", "60"], **QUIET)
    wait_for("its allocation", lambda: a.status()["allocations"])
    p.kill()
    p.wait()
    wait_for("a killed run's allocation ends too", lambda: not a.status()["allocations"])
    r = a.cli("run", "--gpu", "GPU-x", "--", "true", check=False)
    assert r.returncode == 125 and "'GPU-x' is not on this node" in r.stderr, r
    assert "no GPU has 100 of 100" not in r.stderr


@test()
def tokens_are_demanded_granted_and_taken_back(a):
    h = a.hook(a.allocate("one", 50, compute_limit="0.5"))
    stop = threading.Event()

    def work():
        while not stop.is_set() and h.p.poll() is None:
            h.say("launch")
            time.sleep(0.05)
    threading.Thread(target=work, daemon=True).start()
    wait_for("tokens demanded", lambda: h.last()[12] == "1")
    h.say("request 0 20000000")
    grant = h.expect("grant")
    assert int(grant[2]) == 20000000, grant
    time.sleep(0.03)  # what is said to be used is believed up to the time that passed
    h.say("release %s 20000000" % grant[1])
    wait_for("charged", lambda: 0.0019 < a.allocation("one")["gpus"][0]["compute_used"] < 0.0021)
    h.say("request 0 20000000")
    h.expect("grant", 2)
    h.expect("revoke")  # never released: the lease ends
    x = a.hook(a.allocate("two", 50))
    x.say("request 0 1000000")
    x.expect("grant")
    x.end()  # dies with the token
    h.say("request 0 20000000")
    h.expect("grant", 3)
    stop.set()
    wait_for("tokens not demanded", lambda: h.last()[12] == "0")


@test()
def an_agent_that_is_stopped_holds_nobody_up(a):
    """Who waits for a turn and hears nothing goes on without one, and is back when the agent is."""
    h = a.hook(a.allocate("one", 50, compute_limit="0.5"))

    def demanded():
        h.say("launch")
        return h.last()[12] == "1"
    wait_for("tokens demanded", demanded)
    a.p.send_signal(signal.SIGSTOP)
    try:
        h.say("request 0 20000000")
        wait_for("the hook gives it up", lambda: h.seen("lost"), 30)
    finally:
        a.p.send_signal(signal.SIGCONT)
    h.expect("welcome", 2)
    wait_for("served as before", lambda: len(a.allocation("one")["processes"]) == 1 and h.budget() == 4 * GIB)


@test()
def sockets_that_somebody_removed_come_again(a):
    sock = a.allocate("one", 50)
    h = a.hook(sock)
    for replaced in (False, True):
        sock.unlink()
        if replaced:
            sock.write_text("a file")
        wait_for("the allocation's socket", sock.is_socket)
        a.hook(sock).expect("budget")
    assert not h.seen("lost")
    served = a.dir / "run" / "sluice.sock"
    served.unlink()
    wait_for("the agent's socket", lambda: served.is_socket() and a.status(check=False), 40)
    assert len(a.allocation("one")["processes"]) == 3


@test(config="attestation: {interval_s: 1}\nmetrics: {listen: '127.0.0.1:0'}\n")
def unhooked_processes_are_found_and_metrics_tell(a):
    import urllib.request
    port = int(wait_for("the port", lambda: [l.split()[-1] for l in (a.dir / "log").read_text().split("\n") if "metrics at port" in l])[0])
    metrics = lambda: urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port).read().decode()
    sock = a.allocate("one", 50)
    name = 'sluice_hook_state{allocation="one",pod="p-one",namespace="ns",container="c",gpu="%s",state="%%s"} %%d' % (UUID % 0)
    wait_for("metrics before the first process", lambda: name % ("expected", 1) in metrics())
    h = a.hook(sock)
    stripped = subprocess.Popen(["sleep", "60"], env={"SLUICE_SOCKET": str(sock), "PATH": os.environ["PATH"]})
    foreign = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"]})
    (a.dir / "gpu-processes").write_text("%d %d %d\n" % (h.p.pid, stripped.pid, foreign.pid))
    listed = time.monotonic()
    wait_for("not hooked", lambda: a.allocation("one")["hook_state"] == "not hooked")
    assert [str(stripped.pid) in e["text"] for e in a.events("not hooked")] == [True]
    wait_for("foreign", lambda: [e for e in a.events("foreign process") if str(foreign.pid) in e["text"]])
    assert time.monotonic() - listed >= 1  # at the second look: who is just ending is listed for a while
    assert name % ("not hooked", 1) in metrics() and name % ("attached", 0) in metrics()
    h.say("live %d" % GIB)
    wait_for("live bytes", lambda: 'sluice_live_bytes{allocation="one",pod="p-one",namespace="ns",container="c",gpu="%s"} 1073741824' % (UUID % 0) in metrics())
    stripped.kill()
    (a.dir / "gpu-processes").write_text("%d\n" % h.p.pid)
    wait_for("attached again", lambda: a.allocation("one")["hook_state"] == "attached")
    foreign.kill()
    stripped.wait(), foreign.wait()


@test()
def agent_killed_in_a_loop_under_load(a):
    """$SLUICE_KILL_SECONDS of kills while four processes change what they hold, hold tokens, and are stopped and resumed; after it the
    books are whole."""
    hooks = [a.hook(a.allocate("h%d" % i, 25)) for i in range(4)]
    rnd, end, kills = random.Random(3), time.monotonic() + float(os.environ.get("SLUICE_KILL_SECONDS", "30")), 0
    slowest = 0
    while time.monotonic() < end:
        for h in hooks:
            h.say("live %d" % (rnd.randrange(16) * GIB // 4))
            h.say("request 0 1000000")
        stopped = rnd.choice(hooks) if rnd.random() < 0.3 else None
        if stopped:
            stopped.p.send_signal(signal.SIGSTOP)
        time.sleep(rnd.random() * 0.3)
        a.kill()
        kills += 1
        a.start()
        assert a.ledger()[0] <= 8 * GIB
        if stopped:
            stopped.p.send_signal(signal.SIGCONT)
    for h in hooks:
        h.say("live %d" % (2 * GIB))
    wait_for("all back", lambda: all(len(s["processes"]) == 1 for s in a.status()["allocations"]))
    wait_for("whole books", lambda: all(h.budget() == 2 * GIB for h in hooks) and a.ledger()[0] == 8 * GIB and a.ledger()[1]["debt_bytes"] == 0)
    print("        %d kills" % kills)


@test()
def clock_jumps_move_nothing(a):
    """The agent reads only clocks that no one can set; what is shown to people is the time of day."""
    h = a.hook(a.allocate("one", 50))
    before = a.ledger()[0]
    a.kill()
    os.utime(a.dir / "alloc" / "one" / "allocation.json", (1, 1))  # long ago; and in the future
    a.start()
    wait_for("back", lambda: a.allocation("one") and a.allocation("one")["processes"])
    os.utime(a.dir / "alloc" / "one" / "allocation.json", (4e9, 4e9))
    a.cli("set", "one", "memory-factor=50")
    wait_for("still served", lambda: h.last()[8] == "50")
    assert a.ledger()[0] == before
    # The machine's own clock cannot be set here: nothing but UnixMs() may read it.
    source = b"".join(p.read_bytes() for p in (pathlib.Path(__file__).parents[2] / "agent").glob("*.cc"))
    assert source.count(b"CLOCK_REALTIME") == 1


@test()
def a_full_disk_and_a_read_only_folder(a):
    """What cannot be written is said to who asked; what is in force stays."""
    if os.geteuid() != 0:
        raise Skipped("mounting a small file system needs root")
    h = a.hook(a.allocate("one", 50))
    folder = a.dir / "alloc" / "one"
    # In its place a file system without a free block: no live.json can be written.
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "none", str(folder)], capture_output=True).returncode != 0:
        raise Skipped("no tmpfs can be mounted here")
    try:
        (folder / "fill").write_bytes(b"x" * 4096)
        r = a.cli("set", "one", "memory-factor=20", check=False)
        assert r.returncode == 1 and "No space left on device" in r.stderr, r
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        r = a.cli("set", "one", "memory-factor=21", check=False)
        assert r.returncode == 1 and "Read-only file system" in r.stderr, r
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    wait_for("served as before", lambda: a.allocation("one") and a.allocation("one")["processes"])
    a.cli("set", "one", "memory-factor=22")
    wait_for("in force", lambda: h.last()[8] == "22")
    # A run folder that cannot be written: the agent says which, and ends.
    ro = a.dir / "ro"
    ro.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(ro)], check=True)
    try:
        r = subprocess.run([BIN / "sluice-agent", "--run-dir", ro / "run", "--alloc-dir", a.dir / "alloc2"], capture_output=True, text=True, timeout=20)
        assert r.returncode == 1 and "--run-dir" in r.stderr and r.stderr.count("\n") == 1, r
    finally:
        subprocess.run(["umount", "-l", str(ro)], check=True)


@test()
def tenants_stopped_forked_and_killed_with_a_token(a):
    x, y = a.hook(a.allocate("x", 50, compute_limit="0.9")), a.hook(a.allocate("y", 50))
    stop = threading.Event()

    def work():
        while not stop.is_set():
            for h in (x, y):
                if h.p.poll() is None:
                    h.say("launch")
            time.sleep(0.05)
    threading.Thread(target=work, daemon=True).start()
    wait_for("tokens demanded", lambda: x.last()[12] == "1")
    x.say("request 0 20000000")
    x.expect("grant")
    x.say("fork")  # the child holds a copy of the socket
    child = int(x.expect("child")[1])
    x.p.send_signal(signal.SIGSTOP)
    y.say("request 0 20000000")
    y.expect("grant")  # the lease of the stopped one is over
    x.p.send_signal(signal.SIGCONT)
    x.expect("revoke")
    x.say("request 0 20000000")
    y.say("release %s 20000000" % y.seen("grant")[0][1])
    x.expect("grant", 2)
    x.end()
    y.say("request 0 20000000")
    y.expect("grant", 2)
    os.kill(child, signal.SIGKILL)
    stop.set()
    assert a.ledger()[1]["debt_bytes"] == 0


@test()
def tied_folders_of_a_killed_run_and_agent_go(a):
    """`sluice run` and the agent killed together leave a folder; the next agent removes it once nobody holds it."""
    a.needs_hook()
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--fraction", "0.3", "--", "sleep", "60"], **QUIET)
    folder = a.dir / "alloc" / wait_for("its allocation", lambda: a.status()["allocations"])[0]["id"]
    a.kill()
    p.kill()
    p.wait()
    assert folder.exists()
    a.start()
    wait_for("the folder goes", lambda: not folder.exists())
    assert not a.status()["allocations"]
    # One whose program lives on is kept until the program ends.
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--fraction", "0.3", "--", "sh", "-c", "exec %s $SLUICE_SOCKET" % (HERE / "fake_hook")],
                         stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    one = wait_for("its process", lambda: [x for x in a.status()["allocations"] if x["processes"]])[0]
    a.kill()
    p.kill()
    p.wait()
    a.start()
    wait_for("it returns", lambda: a.allocation(one["id"]) and a.allocation(one["id"])["processes"])
    os.kill(one["processes"][0]["pid"], signal.SIGKILL)
    wait_for("the folder goes with its program", lambda: a.allocation(one["id"]) is None)


@test()
def wrong_flags_and_files_are_refused(a):
    for args, rc, word in [(["--nope"], 2, "--nope"), (["--config", "/no/file"], 2, "/no/file: No such file or directory"),
                           (["--run-dir", "/proc/no"], 1, "--run-dir: '/proc/no' cannot be used"),
                           (["--run-dir", str(a.dir / "run")], 1, "another agent serves")]:
        r = subprocess.run([BIN / "sluice-agent", *args], capture_output=True, text=True, timeout=20)
        assert r.returncode == rc and word in r.stderr, (args, r)
    for text, word in [("lendin: 1\n", ":1: lendin: this key is unknown; accepted: alloc_dir, "), ("a: [", "not YAML"),
                       ("node: x\ncompute: {window_ms: 5}\n", ":2: compute.window_ms: '5' is not accepted; accepted: a whole number from 100"),
                       ("clients: [{limit: 0.2}]", "clients[0].id: missing"), ("node: a\nnode: b\n", "node: given twice"),
                       ("clients: [{id: x, request: 0.5, limit: 0.2}]", "accepted: at least compute-request, 0.5"),
                       ("metrics: {listen: '0.0.0.0:99999'}", ":1: metrics.listen: '0.0.0.0:99999' is not accepted; accepted: ADDR:PORT")]:
        (a.dir / "bad.yaml").write_text(text)
        r = subprocess.run([BIN / "sluice-agent", "--config", a.dir / "bad.yaml", "--check-config"], capture_output=True, text=True)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, (text, r)
    for args, word in [(["--fraction", "1.5"], "--fraction: '1.5' is not accepted"), (["--memory", "x"], "--memory: 'x' is not accepted"),
                       (["--backend", "mapped"], "--backend: 'mapped' is not accepted; accepted: managed"),
                       (["--fraction", "0.5", "--memory", "1Gi"], "beside --fraction '0.5'"), (["--nope"], "--nope"),
                       (["--fraction", "0.5", "sleep"], "'sleep' has no -- before it; accepted: sluice run [flags] -- CMD...")]:
        r = a.cli("run", *args, "--", "true", check=False)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, r


@test()
def a_taken_port_is_warned_of(a):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (a.dir / "port.yaml").write_text("metrics: {listen: '127.0.0.1:%d'}\n" % taken.getsockname()[1])
        agent = subprocess.Popen([BIN / "sluice-agent", "--config", a.dir / "port.yaml", "--run-dir", a.dir / "other", "--alloc-dir", a.dir / "other/alloc",
                                  "--quiet"], stderr=subprocess.PIPE, text=True)
        try:
            assert any(" warning metrics: metrics.listen: '127.0.0.1:" in line for line in agent.stderr)
        finally:
            agent.kill()
            agent.wait()


@test()
def without_a_gpu_one_line_says_so(a):
    (a.dir / "libnvidia-ml.so.1").write_text("no library")  # found before a real one
    r = subprocess.run([BIN / "sluice", "run", "--own-agent", "--", "true"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "LD_LIBRARY_PATH": str(a.dir)})
    assert r.returncode == 125 and r.stderr.startswith("sluice: no usable GPU: NVML") and r.stderr.count("\n") == 1, r
    assert ("--gpu sim" in r.stderr) == (BIN.parent / "lib/simgpu/libnvidia-ml.so.1").exists(), r
    r = subprocess.run([BIN / "sluice", "run", "--", "true"], capture_output=True, text=True, timeout=60, env={**os.environ, "SLUICE_RUN_DIR": str(a.dir / "none")})
    assert r.returncode == 125 and "none/sluice.sock; start sluice-agent --run-dir" in r.stderr and r.stderr.count("\n") == 1, r


@test()
def of_kubectls_words_the_one_that_counts(a):
    kubectl = a.dir / "kubectl"
    kubectl.write_text("#!/bin/sh\nfor i in 1 2; do echo 'E1122 20:26:09.151259   27056 memcache.go:265] \"Unhandled Error\"' >&2; done\n"
                       "echo 'The connection to the server x was refused' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    r = subprocess.run([BIN / "kubectl-sluice", "top"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "PATH": "%s:%s" % (a.dir, os.environ["PATH"])})
    assert r.returncode == 1 and r.stderr == "sluice: The connection to the server x was refused\n", r


@test()
def pages_that_only_the_start_needed_are_given_back(a):
    if a.sanitized():
        raise Skipped("a sanitizer's own memory is most of it")

    def kib(name):
        return int(next(l.split()[1] for l in open("/proc/%d/status" % a.p.pid) if l.startswith(name)))
    wait_for("less than two thirds of the most", lambda: kib("VmRSS:") * 3 < kib("VmHWM:") * 2)
    hook = a.hook(a.allocate("one", 50))  # and it serves on
    assert a.allocation("one")["processes"], hook


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def bench_of_many_processes(a):
    """A report; what it fails on is a lost process only."""
    port = metrics_port(a)
    for n in (100, 1000):
        sock = a.allocate("n%d" % n, 20)
        before, count_before, total_before = attach_times(port)
        p = subprocess.Popen([HERE / "bench_attach", sock, str(n), str(a.p.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = p.stdout.readline().strip()
        print("        " + line)
        assert " 0 lost" in line, line
        buckets, count, total = attach_times(port)
        assert count - count_before == n, (count, count_before)
        here = [(bound, c - b) for (bound, c), (_, b) in zip(buckets, before)]
        p99 = next(bound for bound, c in here if c >= 0.99 * n)
        print("        the agent's own time for one attach: mean %.0f us, p99 <= %.0f us, %d of %d within 100 us" % (
            (total - total_before) / n * 1e6, p99 * 1e6, dict(here)[0.0001], n))

        def ask(word):
            p.stdin.write(word + "\n")
            p.stdin.flush()
            return p.stdout.readline().strip()
        time.sleep(1.5)  # what arrivals moved has settled
        begin = time.monotonic() * 1e3
        a.cli("set", "n%d" % n, "memory-factor=%d" % (50 + n // 100))
        words = ask("budget").split()
        assert int(words[1]) == n, words
        print("        a changed setting reaches %d processes: the first %.0f ms, the last %.0f ms after `sluice set` was started (%.1f ms apart)" % (
            n, float(words[3]) - begin, float(words[5]) - begin, float(words[5]) - float(words[3])))
        for word in ("tokens", "singles") + (("rest",) if os.environ.get("SLUICE_BENCH") else ()):
            print("        " + ask(word))
        p.communicate("end\n")
        wait_for("release", lambda: not a.allocation("n%d" % n)["processes"])


class Skipped(Exception):
    pass


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def promtool_accepts_metrics_and_rules(a):
    import urllib.request
    cache = os.environ.get("SLUICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
    tool = shutil.which("promtool") or os.path.join(cache, "prometheus/usr/bin/promtool")
    if not os.access(tool, os.X_OK):
        raise Skipped("no promtool; scripts/setup test fetches it")
    port = int(wait_for("the port", lambda: [l.split()[-1] for l in (a.dir / "log").read_text().split("\n") if "metrics at port" in l])[0])
    a.hook(a.allocate("one", 50))
    a.allocate("two", 25)
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port).read()
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True)
    assert done.returncode == 0 and not done.stderr and not done.stdout, (done.stdout, done.stderr)
    bad = subprocess.run([tool, "check", "metrics"], input=text + b"# TYPE sluice_x counter\nsluice_x 1\n", capture_output=True)
    assert bad.returncode != 0 or bad.stderr or bad.stdout  # it does look
    for name, source in (("alerts.yaml", "agent/alerts.yaml"), ("alerts_test.yaml", "test/agent/alerts_test.yaml")):
        shutil.copy(pathlib.Path(__file__).parents[2] / source, a.dir / name)
    for args in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([tool, *args], cwd=a.dir, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def attach_times(port):
    """The agent's own histogram: (upper bound, so many up to it), their number, their sum in seconds."""
    import urllib.request
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port).read().decode()
    rows = [l.split() for l in text.split("\n") if l.startswith("sluice_agent_attach_seconds")]
    buckets = [(float(r[0].split('le="')[1].rstrip('"}').replace("+Inf", "inf")), float(r[1])) for r in rows if "_bucket" in r[0]]
    count, total = (next(float(r[1]) for r in rows if r[0].endswith(end)) for end in ("_count", "_sum"))
    return buckets, count, total


def metrics_port(agent):
    return int(wait_for("the port", lambda: [l.split()[-1] for l in (agent.dir / "log").read_text().split("\n") if "metrics at port" in l])[0])


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def each_attach_is_timed_once(a):
    port = metrics_port(a)
    assert attach_times(port)[1] == 0
    sock = a.allocate("one", 50)
    for n in range(1, 6):
        a.hook(sock)
        wait_for("the attach", lambda: attach_times(port)[1] == n)
    a.cli("set", "one", "memory-factor=50")  # further budgets are no attach
    buckets, count, total = attach_times(port)
    assert count == 5 and 0 < total < 5 * 0.01 and buckets[-1] == (float("inf"), 5), (buckets, count, total)
    assert all(x[1] <= y[1] for x, y in zip(buckets, buckets[1:])) and len(buckets) == 17, buckets


@test()
def alert_rules_name_metrics_that_exist(a):
    import re
    rules = (pathlib.Path(__file__).parents[2] / "agent" / "alerts.yaml").read_text()
    source = (pathlib.Path(__file__).parents[2] / "agent" / "metrics.cc").read_text()
    used = set(re.findall(r"\bsluice_[a-z_]+", "\n".join(l for l in rules.split("\n") if "expr:" in l or "sluice_" in l)))
    assert len(used) >= 8, used
    assert not [m for m in used if '"%s"' % m not in source], [m for m in used if '"%s"' % m not in source]


@test(gpus=2)
def two_cards(a):
    a.needs_hook()
    out = a.cli("run", "--fraction", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"))
    lines = [l.split() for l in out.stdout.split("\n") if l]
    assert sorted(l[1] for l in lines if l[0] == "budget") == [UUID % 0, UUID % 1], lines
    out = a.cli("run", "--fraction", "0.5", "--gpu", UUID % 1, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert out.stdout.strip() == UUID % 1
    r = a.cli("run", "--fraction", "3", "--", "true", check=False)
    assert r.returncode == 125 and r.stderr == "sluice: 3 GPUs are asked for, this node has 2\n", r


def main():
    names, failed, skipped = sys.argv[3:], 0, False
    for name, f, config, gpus in TESTS:
        if names and name not in names:
            continue
        agent = Agent(config, gpus)
        try:
            f(agent)
            print("ok      " + name, flush=True)
        except Skipped as why:
            skipped = True
            print("SKIPPED %s: %s" % (name, why), flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print("FAILED  " + name, flush=True)
            print((agent.dir / "log").read_text()[-3000:], flush=True)
        finally:
            agent.close()
    if names and not any(t[0] in names for t in TESTS):
        failed = 1
    sys.exit(1 if failed else 4 if skipped else 0)


if __name__ == "__main__":
    main()
