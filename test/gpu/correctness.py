"""The correctness rows of test/gpu/run: values of hooked runs compared with the unhooked run."""

import concurrent.futures
import statistics
import sys

import guard
import rows
from session import GIB, close_enough, why_failed

# A process's memory on the GPU besides its tracked bytes: context, kernels' code, library workspaces.
RESERVE = int(1.5 * GIB)
PARALLEL = 6


def judge(session, row, unhooked, run, mode):
    """The result of one hooked run: a text that begins with ok or FAILED."""
    if run["status"] != 0 or run["result"] is None or "values" not in run["result"]:
        return "FAILED: " + why_failed(run)
    if run["out_gib"] is None and not row.get("silent"):
        return "FAILED: no exit line of the hook on stderr: was it attached?"
    for key, value in row.get("must", {}).items():
        if run["result"].get(key) != value:
            return f"FAILED: {key} is {run['result'].get(key)}, not {value}"
    for key, share in row.get("keeps", {}).items():
        if mode == "full" and run["result"][key] < share * unhooked["result"][key]:
            return f"FAILED: {key} is {run['result'][key]}, unhooked {unhooked['result'][key]}"
    if mode == "tight" and run["in_gib"] is not None and run["in_gib"] > row.get("in_at_most_gib", run["in_gib"]):
        return f"FAILED: {run['in_gib']:.1f} GiB fetched, more than {row['in_at_most_gib']}"
    if "stdout" in row and run["stdout"].split("RESULT")[0] != row["stdout"]:
        return "FAILED: another writer than the program wrote to stdout"
    a, b = unhooked["result"]["values"], run["result"]["values"]
    note = ""
    if a != b:
        again = session.start(
            row["command"], row.get("env", {}), f"{row['name']}: unhooked again", row.get("seconds", 60)
        )
        if again["result"] is None or again["result"]["values"] == a:
            return (
                f"FAILED: values differ from the unhooked run (relative {close_enough(a, b):.1e}), "
                "which repeats itself bit for bit"
            )
        own, ours = close_enough(a, again["result"]["values"]), close_enough(a, b)
        if ours > max(20 * own, 1e-6):
            return f"FAILED: values differ by {ours:.1e}; the unhooked run differs from itself by {own:.1e}"
        note = f" (not deterministic without the hook: {own:.1e})"
    if mode == "tight" and run["out_gib"] == 0:
        return "FAILED: evicted nothing under pressure"
    return "ok" + note


def correctness(session):
    todo = [row for row in rows.CORRECTNESS if session.wanted(row["name"], "correctness")]
    todo = [row for row in todo if row.get("gpus", 1) <= len(session.nvml.handles)]
    entries = {row["name"]: {"name": row["name"], "why": row.get("why", "")} for row in todo}
    session.results["correctness"].extend(entries.values())
    unhooked_runs = {}

    def unhooked(row):
        if "build" in row and not (session.out / "bin" / row["build"]).exists():
            return row, None
        return row, session.start(
            row["command"], row.get("env", {}), f"{row['name']}: unhooked", row.get("seconds", 60)
        )

    def hooked(row, mode):
        """Runs once the row's managed memory is free: the whole allowance where it runs alone. The run is None if the
        time is over, and a text if it is refused."""
        # Without its cache PyTorch keeps no figure of live bytes.
        live = unhooked_runs[row["live_of"] if row.get("live_of") in unhooked_runs else row["name"]]["result"][
            "live_bytes"
        ]
        budget = row.get("budget") or (int(live * 1.5) + GIB if mode == "full" else int(live * 0.6))
        each = None if row.get("alone") else int(row["managed_gib"] * GIB)
        try:
            with session.allowance.share(each, row.get("processes", 1)) as limit:
                if session.left() <= 15:
                    return row, budget, None
                env = {**row.get("env", {}), **session.hook(budget, row.get("hooked_env", {}), limit)}
                run = session.start(row["command"], env, f"{row['name']}: {mode}", row.get("seconds", 60))
                return row, budget, run
        except guard.Refused as refused:
            return row, budget, f"not run: {refused}"

    def finish(row, mode, budget, run):
        """False if it did not run."""
        entry = entries[row["name"]]
        if run is None or isinstance(run, str):
            entry[mode] = run or "not run: out of time"
            print(f"{row['name']}: {mode}: {entry[mode]}", file=sys.stderr, flush=True)
            return False
        entry[mode] = judge(session, row, unhooked_runs[row["name"]], run, mode)
        entry[f"{mode}_budget"] = budget
        entry[f"{mode}_in_gib"], entry[f"{mode}_out_gib"] = run["in_gib"], run["out_gib"]
        if run["result"] and run["result"].get("step_ms"):
            entry[f"{mode}_step_ms"] = statistics.median(run["result"]["step_ms"][1:] or run["result"]["step_ms"])
        print(f"{row['name']}: {mode}: {entry[mode]}", file=sys.stderr, flush=True)
        session.save()
        return True

    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        for row, run in pool.map(unhooked, [r for r in todo if session.left() > 15]):
            entry = entries[row["name"]]
            if run is None:
                entry["unhooked"] = "not built here: no nvcc"
            elif run["result"] is None or run["status"] != 0:
                entry["unhooked"] = "FAILED: " + why_failed(run)
            elif "skipped" in run["result"]:
                entry["unhooked"] = "skipped: " + run["result"]["skipped"]
            else:
                unhooked_runs[row["name"]] = run
                entry["unhooked"], entry["live_bytes"] = "ok", run["result"]["live_bytes"]
                session.live[row["name"]] = run["result"]["live_bytes"]
    session.save()
    # Alone first: the used memory of the GPU is judged while nothing else runs.
    for row in [r for r in todo if r.get("alone") and r["name"] in unhooked_runs]:
        for mode in row.get("modes", rows.MODES):
            if session.left() < 20:
                continue
            baseline = guard.settle(session.nvml)
            with guard.Sampler(session.nvml, baseline) as sampler:
                _, budget, run = hooked(row, mode)
            if not finish(row, mode, budget, run):
                continue
            entry = entries[row["name"]]
            entry[f"{mode}_used_bytes"], entry["samples"] = sampler.highest, sampler.samples
            if sampler.highest > budget + RESERVE:
                entry[mode] = (
                    f"FAILED: {sampler.highest / GIB:.2f} GiB used on the GPU, budget {budget / GIB:.2f} "
                    f"+ reserve {RESERVE / GIB:.2f}"
                )
    for mode in rows.MODES:
        some = [
            r for r in todo if not r.get("alone") and r["name"] in unhooked_runs and mode in r.get("modes", rows.MODES)
        ]
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            jobs = [pool.submit(lambda r=r: hooked(r, mode) if session.left() > 15 else (r, 0, None)) for r in some]
            for job in concurrent.futures.as_completed(jobs):
                row, budget, run = job.result()
                finish(row, mode, budget, run)
    session.save()
