#!/usr/bin/env python3
"""Metrics, alert rules, attestation, and the time of many attaches.

metrics_test.py BIN_DIR TEST_DIR [name...]
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import time

from agent_rig import GIB, HERE, ROOT, UUID, Skipped, at_once, metrics_port, read_metrics, run, test, wait_for


def attach_times(port):
    """The agent's histogram: pairs of upper bound and count, the number of attaches, their sum in seconds."""
    text = read_metrics(port)
    rows = [line.split() for line in text.split("\n") if line.startswith("sluice_agent_attach_seconds")]
    buckets = [
        (float(r[0].split('le="')[1].rstrip('"}').replace("+Inf", "inf")), float(r[1]))
        for r in rows
        if "_bucket" in r[0]
    ]
    count, total = (next(float(r[1]) for r in rows if r[0].endswith(end)) for end in ("_count", "_sum"))
    return buckets, count, total


@test(config="attestation: {interval_s: 1}\nmetrics: {listen: '127.0.0.1:0'}\n")
def unhooked_processes_are_reported(a):
    port = metrics_port(a)
    metrics = lambda: read_metrics(port)
    sock = a.allocate("one", 50)
    shown = re.search(r'allocation="([0-9a-f]{12})",pod="p-one"', wait_for("metrics", metrics))[1]
    labels = f'allocation="{shown}",pod="p-one",namespace="ns",container="c",gpu="{UUID % 0}"'

    def state(name, value):
        return f'sluice_hook_state{{{labels},state="{name}"}} {value}' in metrics()

    wait_for("metrics before the first process", lambda: state("expected", 1))
    h = a.hook(sock)
    h.command("fork")
    stripped = int(h.expect("child")[1])
    # The variable is its own claim, which counts for nothing.
    external = subprocess.Popen(["sleep", "60"], env={"SLUICE_SOCKET": str(sock), "PATH": os.environ["PATH"]})
    (a.dir / "gpu-processes").write_text(f"{h.p.pid} {stripped} {external.pid}\n")
    listed = time.monotonic()
    wait_for("not hooked", lambda: a.allocation("one")["hook_state"] == "not hooked")
    assert [str(stripped) in e["text"] for e in a.events("not hooked")] == [True]
    wait_for(
        "the external process", lambda: [e for e in a.events("external process") if str(external.pid) in e["text"]]
    )
    assert time.monotonic() - listed >= 1  # at the second check: an ending process is listed for a while
    assert state("not hooked", 1) and state("attached", 0)
    h.command(f"live {GIB}")
    wait_for("live bytes", lambda: f"sluice_live_bytes{{{labels}}} {GIB}" in metrics())
    os.kill(stripped, signal.SIGKILL)
    (a.dir / "gpu-processes").write_text(f"{h.p.pid}\n")
    wait_for("attached again", lambda: a.allocation("one")["hook_state"] == "attached")
    external.kill()
    external.wait()


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def bench_of_many_processes(a):
    """A report. Only a lost process makes it fail."""
    exact = at_once(a.p.pid)
    print("        " + ("with" if exact else "without") + " real-time priority")
    first = ["chrt", "-f", "20"] if exact else []
    for n in (100, 1000):
        bench(a, metrics_port(a), n, first)
    if os.environ.get("SLUICE_BENCH"):
        bench_beside_others(a, first)


class Attacher:
    """Processes of one allocation (bench_attach)."""

    def __init__(self, a, name, count, prefix, *how):
        self.p = subprocess.Popen(
            [*prefix, HERE / "bench_attach", a.allocate(name, 20), str(count), str(a.p.pid), *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.line = self.p.stdout.readline().strip()
        assert " 0 lost" in self.line, self.line

    def ask(self, word):
        self.p.stdin.write(word + "\n")
        self.p.stdin.flush()
        return self.p.stdout.readline().strip()

    def end(self):
        self.p.communicate("end\n")


def bench_beside_others(a, prefix):
    """One tenant attaches and asks for tokens, alone and beside many processes of two others."""
    one = Attacher(a, "one", 1, prefix)

    def figures(title):
        print(f"        {title}: {one.ask('singles')}; {one.ask('tokens')}")

    figures("alone")
    for how in ("idle", "busy"):
        # Of usual priority: the agent is judged, not the processor that they share with the one.
        others = [Attacher(a, f"{how}{i}", 500, [], how) for i in range(2)]
        time.sleep(3)  # budgets settle
        figures(f"beside 1,000 {how} processes of two other tenants")
        for other in others:
            other.end()
        wait_for("release", lambda h=how: not any(a.allocation(f"{h}{i}")["processes"] for i in range(2)))
    one.end()


def bench(a, port, n, prefix):
    before, count_before, total_before = attach_times(port)
    many = Attacher(a, f"n{n}", n, prefix)
    print("        " + many.line)
    buckets, count, total = attach_times(port)
    assert count - count_before == n, (count, count_before)
    here = [(bound, c - b) for (bound, c), (_, b) in zip(buckets, before, strict=False)]
    p99 = next(bound for bound, c in here if c >= 0.99 * n)
    print(
        f"        the agent's own time for one attach: mean {(total - total_before) / n * 1e6:.0f} us, "
        f"p99 <= {p99 * 1e6:.0f} us, {dict(here)[0.0001]:.0f} of {n} within 100 us"
    )
    time.sleep(1.5)  # budgets settle after the arrivals
    begin = time.monotonic() * 1e3
    a.cli("set", f"n{n}", f"memory-factor={50 + n // 100}")
    words = many.ask("budget").split()
    assert int(words[1]) == n, words
    first, last = float(words[3]) - begin, float(words[5]) - begin
    print(
        f"        a changed setting reaches {n} processes {first:.0f} to {last:.0f} ms after the start of "
        f"`sluice set` ({last - first:.1f} ms apart)"
    )
    for word in ("tokens", "singles") + (("rest",) if os.environ.get("SLUICE_BENCH") else ()):
        print("        " + many.ask(word))
    many.end()
    wait_for("release", lambda: not a.allocation(f"n{n}")["processes"])


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def promtool_accepts_metrics_and_rules(a):
    cache = os.environ.get("SLUICE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice"
    )
    tool = shutil.which("promtool") or os.path.join(cache, "prometheus/usr/bin/promtool")
    if not os.access(tool, os.X_OK):
        raise Skipped("no promtool; scripts/setup test fetches it")
    port = metrics_port(a)
    a.hook(a.allocate("one", 50))
    a.allocate("two", 25)
    text = read_metrics(port).encode()
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True)
    assert done.returncode == 0 and not done.stderr and not done.stdout, (done.stdout, done.stderr)
    bad = subprocess.run(
        [tool, "check", "metrics"], input=text + b"# TYPE sluice_x counter\nsluice_x 1\n", capture_output=True
    )
    assert bad.returncode != 0 or bad.stderr or bad.stdout  # the tool does check
    for name, source in (("alerts.yaml", "agent/alerts.yaml"), ("alerts_test.yaml", "test/agent/alerts_test.yaml")):
        shutil.copy(ROOT / source, a.dir / name)
    for args in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([tool, *args], cwd=a.dir, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def each_attach_is_timed_once(a):
    port = metrics_port(a)
    assert attach_times(port)[1] == 0
    sock = a.allocate("one", 50)
    for n in range(1, 6):
        a.hook(sock)
        wait_for("the attach", lambda n=n: attach_times(port)[1] == n)
    a.cli("set", "one", "memory-factor=50")  # further budgets do not count
    buckets, count, total = attach_times(port)
    assert count == 5 and 0 < total < 5 * 0.01 and buckets[-1] == (float("inf"), 5), (buckets, count, total)
    assert all(x[1] <= y[1] for x, y in itertools.pairwise(buckets)) and len(buckets) == 17, buckets


@test(config="metrics: {listen: '127.0.0.1:0'}\n", env={"FAKE_NVML_CGROUP_BYTES": str(4 * GIB)})
def a_limit_on_the_agents_own_cgroup_leaves_the_card_its_size(a):
    """From driver 615 on NVML may give the cgroup's size; the older call still gives the card's."""
    port = metrics_port(a)
    size = f'sluice_gpu_memory_bytes{{gpu="{UUID % 0}"}} {8 * GIB}'
    wait_for("the card's size", lambda: size in read_metrics(port))
    text = (a.dir / "log").read_text()
    assert text.count("the driver limits the agent's cgroup") == 1, text


@test()
def alert_rules_use_metrics_that_exist(a):
    rules = (ROOT / "agent" / "alerts.yaml").read_text()
    sources = ("agent/metrics.cc", "proto/counters.def")
    source = "".join((ROOT / name).read_text() for name in sources)
    used = set(re.findall(r"\bsluice_[a-z_]+", rules))
    assert len(used) >= 8, used
    assert not [m for m in used if f'"{m}"' not in source], [m for m in used if f'"{m}"' not in source]


if __name__ == "__main__":
    run()
