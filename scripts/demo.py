"""Plays two tenants through the real hook on a simulated card, with and without fetching at launch.

Prints a table of their steps, and writes a timeline.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 1 << 30
LINK = 51e9  # bytes a second in each direction, both at once: the H200's pinned rate (facts behind simgpu/profiles)
BUDGET = "3800Mi"  # half of an 8 GiB card, less the memory of driver and two contexts
MODES = [("demand faults", {"SLUICE_PREFETCH": "off"}), ("sluice", {})]


def say(text):
    print(f"\033[1m== {text}\033[0m" if sys.stderr.isatty() else f"== {text}", file=sys.stderr, flush=True)


# Recorded on an H200 (docs/operate/traces.md); each has more live than its half of the card.
TENANTS = ("transformer", "convnet")


def play(build, tenants, variables, folder, label, steps):
    """All tenants at once on one card. Returns each one's figures and the lines that its container's log would show."""
    state = folder / f"{label}.state".replace(" ", "-")
    running = []
    for number, (name, path) in enumerate(tenants):
        timeline = folder / f"timeline-{label}-{number}.json".replace(" ", "-")
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder / "lib" / "simgpu"),
            "LD_PRELOAD": str(folder / "lib" / "libsluice.so"),
            "SIMGPU_PROFILE": "card-8g",
            "SIMGPU_STATE": str(state),
            "SIMGPU_TENANTS": str(len(tenants)),
            "SIMGPU_TIMELINE": str(timeline),
            "SLUICE_GPU_MEMORY": BUDGET,
            **variables,
        }
        command = [str(build / "bin" / "sluice-replay"), str(path), "--json", "--warm-up", "2"] + (
            ["--steps", str(steps)] if steps else []
        )
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append((name, process, timeline))
    out = []
    begin = time.monotonic()
    for name, process, timeline in running:
        stdout, stderr = wait(process, label, begin)
        if process.returncode != 0:
            for _, other, _ in running:
                if other.poll() is None:
                    other.kill()
            sys.exit(f"demo: {name} ({label}) ended with {process.returncode}:\n{stderr}")
        out.append(
            {"name": name, "figures": json.loads(stdout), "log": stderr.strip().splitlines(), "timeline": timeline}
        )
    return out


def wait(process, label, begin):
    while True:
        try:
            return process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                print(f"\r\033[K   {label}: {time.monotonic() - begin:.0f} s", end="", file=sys.stderr, flush=True)


def bound(build, path):
    """The fewest bytes that an engine can move in a step at this budget, and the time that the link needs for them."""
    text = subprocess.run(
        [build / "bin" / "sluice-trace", "bound", path, "--budget-gib", str(3800 / 1024), "--json"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(text)


def merge_timelines(results, to):
    """One Chrome trace: each mode and tenant a process with a name."""
    events = []
    for mode, (label, tenants) in enumerate(results):
        for number, tenant in enumerate(tenants):
            pid = 1 + mode * 10 + number
            for event in json.loads(tenant["timeline"].read_text())["traceEvents"]:
                event["pid"] = pid
                if event.get("name") == "process_name":
                    event["args"]["name"] = f"{label}: tenant {number + 1}, {tenant['name']}"
                events.append(event)
    to.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    return len(events)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--steps", type=int, default=0, help="play only the first N steps")
    parser.add_argument("--out", default="", help="folder for timeline.json and demo.json (default: <build>/demo)")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    out = pathlib.Path(options.out) if options.out else build / "demo"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-demo.") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "lib").symlink_to(build / "lib")  # the loader splits paths at blanks, colons and semicolons
        tenants = [(name, ROOT / "experiments" / "traces" / f"{name}.sltrace") for name in TENANTS]
        limits = [bound(build, path) for _, path in tenants]
        results = []
        for label, variables in MODES:
            say(f"two tenants on one simulated 8 GiB card, {BUDGET} each: {label}")
            results.append((label, play(build, tenants, variables, folder, label, options.steps)))
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        count = merge_timelines(results, out / "timeline.json")
    # Two tenants share compute and link: at best the work of one follows the work of the other.
    limit = max(
        sum(b["kernel_ms"] for b in limits),
        *(sum(b[k] for b in limits) / LINK * 1e3 for k in ("in_bytes", "out_bytes")),
    )
    print()
    print(
        "Two training runs recorded on an H200, with the pages that each kernel truly touched, played through the hook."
    )
    print("Times are those of the simulated card (an H200's rates); a step while the other tenant runs too.\n")
    step_columns = " | ".join(f"{label}, ms a step" for label, _ in MODES)
    moved_columns = " / ".join([*(label for label, _ in MODES), "minimum"])
    print(
        f"| tenant | live | budget | {step_columns} | limit of the link, ms "
        f"| GiB over the link a step, both ways: {moved_columns} |"
    )
    print("|---|---|---|" + "---|" * (len(MODES) + 2))
    crossed = ("fault_bytes", "prefetch_in_bytes", "prefetch_out_bytes", "driver_evicted_bytes", "remote_bytes")
    for i, (name, _) in enumerate(tenants):
        steps = [tenants_[i]["figures"]["median_ms"] for _, tenants_ in results]
        moved = [sum(tenants_[i]["figures"]["simulated"][key] for key in crossed) / GIB for _, tenants_ in results]
        minimum = (limits[i]["in_bytes"] + limits[i]["out_bytes"]) / GIB
        print(
            f"| {name} | {limits[i]['peak_live_bytes'] / GIB:.2f} GiB | {3800 / 1024:.2f} GiB | "
            + " | ".join(f"{s:.1f}" for s in steps)
            + f" | {limit:.1f} | "
            + " / ".join(f"{m:.2f}" for m in moved)
            + f" / {minimum:.2f} |"
        )
    print(
        "\nThe log of each container (kubectl logs); its shares of time compare the simulated card's time with this "
        "machine's:\n"
    )
    for label, tenants_ in results:
        for number, tenant in enumerate(tenants_):
            for line in tenant["log"]:
                if line.startswith("sluice: "):  # no container's log has the simulated card's own messages
                    print(f"  [{label}, tenant {number + 1}] {line}")
    summary = {
        "budget": BUDGET,
        "limit_ms": limit,
        "modes": {label: [{"tenant": t["name"], **t["figures"]} for t in tenants_] for label, tenants_ in results},
    }
    (out / "demo.json").write_text(json.dumps(summary, indent=1))
    timeline = os.path.relpath(out / "timeline.json")
    print(
        f"\nTimeline ({count} events: launches, stalls, transfers, resident bytes): {timeline} "
        "- open it in Perfetto or chrome://tracing."
    )
    misuses = sum(t["figures"]["simulated"]["misuses"] for _, tenants_ in results for t in tenants_)
    if misuses:
        sys.exit(f"demo: the simulated card reported {misuses} misuses")


if __name__ == "__main__":
    main()
