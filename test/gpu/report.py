"""results.json as Markdown tables."""

GIB = 1 << 30


def number(value, digits=3):
    return "" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def yes_no(met):
    return "" if met is None else "yes" if met else "**no**"


def markdown(results):
    m = results["machine"]
    lines = [f"# {', '.join(m['gpus'])}, driver {m['driver']}, {m['cpus']} CPUs, {m['date']}", ""]
    for bench in results["benchmarks"]:
        if "rows" in bench:
            lines += [
                f"## {bench['name']} (lowest of the medians of {bench['rounds']} interleaved rounds)",
                "",
                "| call | unhooked | hooked | ratio | goal | met |",
                "|---|---|---|---|---|---|",
            ]
            for r in bench["rows"]:
                ratio = r["hooked"] / r["unhooked"] if r["unhooked"] else None
                lines.append(
                    f"| {r['name']} | {number(r['unhooked'])} | {number(r['hooked'])} | {number(ratio)} | {r['goal']} "
                    f"| {yes_no(r['met'])} |"
                )
            lines += [f"- {e}" for e in bench["errors"]] + [""]
    others = [b for b in results["benchmarks"] if "rows" not in b]
    if others:
        lines += [
            "## Benchmarks (medians, interleaved)",
            "",
            "| benchmark | figures | ratio | goal | met | fetched/evicted GiB |",
            "|---|---|---|---|---|---|",
        ]
        for b in others:
            figures = ", ".join(f"{k} {v:.2f}" for k, v in b.get("medians", {}).items()) or "; ".join(b["errors"])[:300]
            moved = ", ".join(f"{k} {i}/{o}" for k, (i, o) in b.get("moved", {}).items() if i is not None)
            moved += "".join(f"; {k} {v / GIB:.2f} on the GPU" for k, v in b.get("on_card_bytes", {}).items())
            ratio = f"{b['ratio']:.3f} ({b['ratio_of']})" if "ratio" in b else ""
            lines.append(f"| {b['name']} | {figures} | {ratio} | {b['goal']} | {yes_no(b.get('met'))} | {moved} |")
            lines += [f"|  | {e[:200]} | | | | |" for e in b["errors"] if b.get("medians")]
        lines.append("")
    if results["correctness"]:
        lines += [
            "## Correctness (values compared with the unhooked run)",
            "",
            "| program | live GiB | unhooked | full budget | 0.6 of live | evicted GiB | step ms full / 0.6 "
            "| used on the GPU |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for e in results["correctness"]:
            tight = e.get("tight", f"— {e['why']}" if e["why"] else "")
            used = ", ".join(
                f"{m} {e[m + '_used_bytes'] / GIB:.2f} of {e[m + '_budget'] / GIB:.2f}"
                for m in ("full", "tight")
                if m + "_used_bytes" in e
            )
            steps = " / ".join(number(e.get(m + "_step_ms"), 1) for m in ("full", "tight"))
            live = f"{e['live_bytes'] / GIB:.2f}" if "live_bytes" in e else ""
            lines.append(
                f"| {e['name']} | {live} | {e.get('unhooked', '')} | {e.get('full', '')} | {tight} "
                f"| {number(e.get('tight_out_gib'), 2)} | {steps} | {used} |"
            )
        lines.append("")
    return "\n".join(lines)
