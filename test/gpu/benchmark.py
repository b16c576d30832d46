"""The benchmark rows of test/gpu/run: variants run in turn, and their ratio."""

import contextlib
import statistics
import sys

from session import GIB, close_enough, why_failed


def figure(bench, run):
    if bench["figure"] == "step":
        steps = run["result"]["step_ms"][bench.get("skip", 1) :]
        return statistics.median(steps) if steps else None
    return run["result"].get(bench["figure"])


def benchmark(session, bench):
    entry = {
        "name": bench["name"],
        "goal": bench.get("goal", ""),
        "rounds": 0,
        "figures": {v: [] for v in bench["variants"]},
        "errors": [],
    }
    session.results["benchmarks"].append(entry)
    micro = {v: [] for v in bench["variants"]}
    for number in range(bench["rounds"]):
        # Variants alternate, in reverse order every second round, so that a drift of the machine affects all.
        order = list(bench["variants"].items())
        for name, variant in order if number % 2 == 0 else reversed(order):
            if session.left() < 25:
                entry["errors"].append("out of time")
                return finish_benchmark(session, bench, entry, micro)
            env = dict(variant.get("env", {}))
            if variant.get("hook"):
                budget = variant.get("budget", 2 * GIB)
                if "fraction" in variant:
                    if bench["live"] not in session.live:
                        probe = session.start(bench["command"], {}, f"{bench['name']}: live bytes")
                        session.live[bench["live"]] = (probe["result"] or {}).get("live_bytes", 4 * GIB)
                    budget = int(session.live[bench["live"]] * variant["fraction"])
            # One program at a time: it may use the whole allowance.
            is_guarded = variant.get("hook") or variant.get("guarded")
            with session.allowance.share() if is_guarded else contextlib.nullcontext({}) as limit:
                env = session.hook(budget, env, limit) if variant.get("hook") else {**env, **limit}
                run = session.start(variant.get("command", bench["command"]), env, f"{bench['name']}: {name} #{number}")
            if run["result"] is None or run["status"] != 0 or "skipped" in run["result"]:
                skipped = (run["result"] or {}).get("skipped")
                entry["errors"].append(f"{name}: {skipped or why_failed(run)}")
                entry["broken"] = entry.get("broken", False) or not skipped
                continue
            if bench.get("evicts") and variant.get("hook") and run["out_gib"] in (None, 0):
                entry["errors"].append(f"{name}: evicted nothing")
                entry["broken"] = True
            if "on_card_beyond" in bench and run["result"]["on_card_bytes"] > budget + bench["on_card_beyond"]:
                entry["errors"].append(
                    f"{name}: {run['result']['on_card_bytes'] >> 20} MiB on the GPU, budget {budget >> 20}"
                )
                entry["broken"] = True
            # A program that computes other values is not faster. Some programs are not deterministic to the last bit:
            # the correctness rows show which.
            values = run["result"].get("values")
            if values is not None and (off := close_enough(entry.setdefault("values", values), values)) > 0:
                entry["errors"].append(f"{name}: values differ by {off:.1e} from those of the first run")
                entry["broken"] = entry.get("broken", False) or not off < 1e-3
            if bench.get("kind") == "micro":
                micro[name].append(run["result"])
            else:
                entry["figures"][name].append(figure(bench, run))
            if "host_us" in run["result"]:
                entry.setdefault("host_us", {})[name] = run["result"]["host_us"]
            if "on_card_bytes" in run["result"]:
                entry.setdefault("on_card_bytes", {})[name] = run["result"]["on_card_bytes"]
            entry.setdefault("moved", {})[name] = [run["in_gib"], run["out_gib"]]
        entry["rounds"] = number + 1
    finish_benchmark(session, bench, entry, micro)


def finish_benchmark(session, bench, entry, micro):
    if bench.get("kind") == "micro":
        entry["rows"] = micro_rows(micro)
    else:
        above, below = bench["ratio"]
        medians = {
            name: statistics.median([f for f in figures if f is not None])
            for name, figures in entry["figures"].items()
            if any(f is not None for f in figures)
        }
        entry["medians"] = medians
        if above in medians and below in medians:
            entry["ratio_of"], entry["ratio"] = f"{above} / {below}", medians[above] / medians[below]
            entry["met"] = (
                entry["ratio"] <= bench["at_most"]
                if "at_most" in bench
                else entry["ratio"] >= bench["at_least"]
                if "at_least" in bench
                else None
            )
    print(f"{entry['name']}: {entry.get('ratio', '')} {'; '.join(entry['errors'])}", file=sys.stderr, flush=True)
    session.save()


def micro_rows(micro):
    """Rows of the single-call benchmark, hooked compared with unhooked: the lowest of the rounds' medians, since a
    process may run on the slower of two kinds of cores for all of its time."""
    if not all(micro.values()):
        return []

    def lowest(variant, pick):
        return min(pick(r) for r in micro[variant])

    out = []

    def row(name, pick, goal, met):
        a, b = lowest("unhooked", pick), lowest("hooked", pick)
        out.append({"name": name, "unhooked": a, "hooked": b, "goal": goal, "met": met(a, b)})

    if "unhooked" not in micro:  # launches through the hook and around it
        for key, what in (("small", "two operands of 4 MiB"), ("one", "one of 64 MiB")):
            a = statistics.median(r[key]["bare_us"] for r in micro["hooked"])
            b = a + statistics.median(r[key]["added_us"][1] for r in micro["hooked"])
            name = f"launch that fits, {what}, us, alternating in {len(micro['hooked'])} processes"
            out.append({"name": name, "unhooked": a, "hooked": b, "goal": "added <= 0.2 us", "met": b - a <= 0.2})
        return out
    if "copies" not in micro["unhooked"][0]:  # launches alone
        for key, what in (("launch_small_us", "two operands of 4 MiB"), ("launch_one_us", "one of 64 MiB")):
            row(
                f"launch over the budget, {what} on the GPU, us",
                lambda r, k=key: r[k],
                "added <= 0.3 us",
                lambda a, b: b - a <= 0.3,
            )
            a, b = (statistics.median(r[key] for r in micro[v]) for v in ("unhooked", "hooked"))
            out.append(
                {
                    "name": f"the same, medians of {len(micro['hooked'])} processes",
                    "unhooked": a,
                    "hooked": b,
                    "goal": "added <= 0.3 us",
                    "met": b - a <= 0.3,
                }
            )
        return out
    row("malloc + free of 8 MiB, us", lambda r: r["malloc_free_8m_us"], "<= 1 us", lambda a, b: b <= 1)
    for key in micro["unhooked"][0]["copies"]:
        name = key if key.startswith("memset") else f"copy {key}"
        row(f"{name}, us", lambda r, k=key: r["copies"][k], "<= 1.05", lambda a, b: b / a <= 1.05)
    row(
        "resident memory of the process, MiB",
        lambda r: r["rss_bytes"] / 2**20,
        "added <= 8 MiB",
        lambda a, b: b - a <= 8,
    )
    return out
