#!/usr/bin/env python3
"""200 slow clients of a daemon's HTTP port, and kubelet's probe is answered within its second.

probes_test.py BIN_DIR TEST_DIR [name...]
"""

import contextlib
import json
import subprocess
import sys

import attacker  # noqa: F401  the path of the rig
from fake_api import FakeApi
from slow_clients import long_bodies, probe, withstands

import agent_rig  # isort: skip
from agent_rig import metrics_port, run, test, wait_for  # isort: skip
from harness import free_port  # isort: skip


@contextlib.contextmanager
def daemon(a, name, *arguments):
    with open(a.dir / name, "w") as log:
        p = subprocess.Popen([agent_rig.BIN / name, *arguments], stderr=log)
    try:
        yield p
        assert p.poll() is None, f"{name} ended: {(a.dir / name).read_text()}"
    finally:
        p.kill()
        p.wait()


def serves(port, tls=False):
    def answers():
        with contextlib.suppress(OSError):
            return probe(port, tls) > 0

    wait_for("/healthz", answers)


def plugin_config(a, port):
    """A node of its own, with the rig's fake NVML."""
    for folder in ("kubelet", "plugins", "registry", "cdi", "plugin-alloc", "state"):
        (a.dir / folder).mkdir()
    config = {
        "metricsAddress": f"127.0.0.1:{port}",
        "nvmlLibrary": str(agent_rig.HERE / "libfake-nvml.so.1"),
        "allocDir": str(a.dir / "plugin-alloc"),
        "libDir": str(a.dir / "plugin-lib"),  # the default is the machine's
        "cdiDir": str(a.dir / "cdi"),
        "stateFile": str(a.dir / "state/plugin.json"),
    }
    (a.dir / "plugin.yaml").write_text(json.dumps(config))
    return str(a.dir / "plugin.yaml")


@test()
def slow_clients_of_the_device_plugin(a):
    port = free_port()
    config = plugin_config(a, port)
    with daemon(a, "sluice-device-plugin", "--config", config, "--kubelet-dir", a.dir / "kubelet"):
        serves(port)
        withstands(port)


@test()
def slow_clients_of_the_dra_driver(a):
    port, api = free_port(), FakeApi()
    config = plugin_config(a, port)
    api.kubeconfig(a.dir / "kubeconfig")
    folders = ["--kubelet-dir", a.dir / "kubelet", "--plugins-dir", a.dir / "plugins"]
    folders += ["--registry-dir", a.dir / "registry"]
    node = ["--node-name", "n1", "--kubeconfig", a.dir / "kubeconfig"]
    with daemon(a, "sluice-dra-driver", "--config", config, *folders, *node):
        serves(port)
        withstands(port)


@test()
def slow_clients_of_the_extender(a):
    calls, metrics, api = free_port(), free_port(), FakeApi()
    api.kubeconfig(a.dir / "kubeconfig")
    config = {"listen": f"127.0.0.1:{calls}", "metricsListen": f"127.0.0.1:{metrics}"}
    (a.dir / "extender.yaml").write_text(json.dumps({**config, "kubeconfig": str(a.dir / "kubeconfig")}))
    with daemon(a, "sluice-extender", "--config", a.dir / "extender.yaml"):
        for port in (metrics, calls):
            serves(port)
            withstands(port)


@contextlib.contextmanager
def _webhook(a):
    """Its HTTPS port, and that of its metrics."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-keyout", a.dir / "tls.key", "-out", a.dir / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    https, metrics = free_port(), free_port()
    listen = ["--listen", f"127.0.0.1:{https}", "--metrics-listen", f"127.0.0.1:{metrics}"]
    with daemon(a, "sluice-webhook", "--cert", a.dir / "tls.crt", "--key", a.dir / "tls.key", *listen):
        serves(metrics)
        yield https, metrics


@test()
def slow_clients_of_the_webhook(a):
    with _webhook(a) as (https, metrics):
        withstands(metrics)
        withstands(https, b"/readyz", tls=True)


@test()
def long_bodies_sent_fast_to_the_webhook(a):
    """It reads a body of 64 MiB to its end, to answer that it is too long."""
    with _webhook(a) as (https, _), long_bodies(https):
        took = sorted(probe(https, tls=True) for _ in range(30))
        print(f"        /healthz beside 8 such clients: {took[15] * 1e3:.0f} ms, {took[-1] * 1e3:.0f} ms at most")
        assert took[15] < (0.8 if a.sanitized() else 0.2), took


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def slow_clients_of_the_agent(a):
    withstands(metrics_port(a))


@test(config="metrics: {listen: '127.0.0.1:0'}\n")
def slow_readers_of_the_agents_long_pages(a):
    """Each page of three hundred processes is longer than a socket holds."""
    from floods import attack

    with attack("attached", a.allocate("crowd", 10)):
        # A sanitized agent takes longer for 200 such pages than a request may wait: it says so, in time.
        accepted = (200, 503) if a.sanitized() else (200,)
        withstands(metrics_port(a), b"/status.json", kinds=(3,), accepted=accepted)


if __name__ == "__main__":
    sys.exit(run())
