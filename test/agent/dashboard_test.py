#!/usr/bin/env python3
"""Asks a real Prometheus, which scrapes a real agent, every query of the Grafana dashboard.

dashboard_test.py BIN_DIR TEST_DIR
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
import harness  # noqa: E402

BIN, TOOLS = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
CACHE = pathlib.Path(
    os.environ.get("SLUICE_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sluice"
)
CARD = "GPU-00000000-0000-0000-0000-000000000000"


def prometheus():
    for path in (shutil.which("prometheus"), CACHE / "prometheus/usr/bin/prometheus"):
        if path and os.access(path, os.X_OK):
            return path
    sys.exit(print("SKIPPED: no prometheus; scripts/setup test fetches it") or 4)


def wait_for(what, condition):
    return harness.wait_for(what, condition, seconds=60, pause=0.1, ignored=OSError)


def main():
    program = prometheus()
    dashboard = json.loads((ROOT / "charts/sluice/files/dashboard.json").read_text())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-dashboard-"))
    metrics, web = harness.free_port(), harness.free_port()
    (folder / "agent.yaml").write_text(f"metrics: {{listen: '127.0.0.1:{metrics}'}}\n")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms}\n"
        f"scrape_configs: [{{job_name: a, static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    )
    allocation = folder / "alloc/one"
    allocation.mkdir(parents=True)
    (allocation / "allocation.json").write_text(
        json.dumps(
            {
                "version": 1,
                "id": "one",
                "gpus": [{"uuid": CARD, "units": 50}],
                "pod": "p",
                "namespace": "team",
                "container": "c",
            }
        )
    )
    started = []

    def start(*command, **more):
        started.append(subprocess.Popen(command, stderr=open(folder / "log", "a"), stdout=subprocess.DEVNULL, **more))
        return started[-1]

    def ask(expression):
        data = urllib.parse.urlencode({"query": expression})
        try:
            return json.load(urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/query?{data}"))
        except urllib.error.HTTPError as e:
            text = e.read()  # JSON from the query engine, plain text while Prometheus starts
            return (
                json.loads(text)
                if text.startswith(b"{")
                else {"status": "error", "error": str(e), "data": {"result": []}}
            )

    try:
        start(
            BIN / "sluice-agent",
            "--config",
            folder / "agent.yaml",
            "--run-dir",
            folder / "run",
            "--alloc-dir",
            folder / "alloc",
            "--nvml",
            TOOLS / "libfake-nvml.so.1",
        )
        start(
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{web}",
        )
        wait_for("the agent's socket", (allocation / "agent.sock").exists)
        hook = start(TOOLS / "fake_hook", allocation / "agent.sock", "3000", stdin=subprocess.PIPE)
        wait_for(
            "four scrapes of the container",
            lambda: (
                float(
                    (ask('count_over_time(sluice_processes{pod="p"}[1m])')["data"]["result"] or [{"value": [0, 0]}])[0][
                        "value"
                    ][1]
                )
                > 4
            ),
        )
        hook.stdin.write(b"live 1000000\nlaunch\n")
        hook.stdin.flush()
        failed, count = [], 0
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                count += 1
                text = (
                    target["expr"].replace("$__rate_interval", "1m").replace("$namespace", ".*").replace("$pod", ".*")
                )
                answer = ask(text)
                if answer["status"] != "success":
                    failed.append(f"{panel['title']}: {text}: {answer['error']}")
                elif not answer["data"]["result"]:
                    failed.append(f"{panel['title']}: {text}: no such series")
        for variable in dashboard["templating"]["list"]:
            if variable["type"] != "query":
                continue
            inner, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(",", 1)
            count += 1
            found = ask(f"count by ({label.strip()}) ({inner.replace('$namespace', '.*')})")["data"].get("result")
            if not found or label.strip() not in found[0]["metric"]:
                failed.append(f"variable {variable['name']}: no value")
        # A query of an unknown metric, and a broken one, must fail: the check works.
        assert not ask("sluice_no_such_metric")["data"]["result"] and ask("rate(")["status"] != "success"
        print(f"{count} queries, {len(failed)} failed")
        sys.exit("\n".join(failed) if failed else 0)
    finally:
        for p in reversed(started):
            p.send_signal(signal.SIGKILL)
            p.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
