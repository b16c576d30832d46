#!/usr/bin/env python3
"""Working sets, the sizes that containers need, and claims: top, status, doctor, metrics.

size_test.py BIN_DIR TEST_DIR [name...]
"""

import json
import re

from agent_rig import GIB, UUID, metrics_port, read_metrics, run, test, wait_for


@test(config="sizing: {startup_s: 3}\nmetrics: {listen: '127.0.0.1:0'}\n")
def the_size_that_a_container_needs_is_named(a):
    """One whose fraction is far too large, one that needs more, one that fits; before its start is over, nothing."""
    gib = {"large": (50, 2, 0.5), "small": (10, 4, 2), "fits": (20, 2, 1.3)}  # percent, live, touched
    hooks = {}
    for name, (percent, live, touched) in gib.items():
        hooks[name] = a.hook(a.allocate(name, percent))
        hooks[name].expect("budget")
        hooks[name].command(f"live {int(live * GIB)}")
        hooks[name].command(f"touched {int(touched * GIB)}")

    def size(name):
        return a.allocation(name)["gpus"][0]

    def advice():
        for hook in hooks.values():
            hook.command("launch")
        return all(size(name)["size_advice"] for name in hooks)

    assert "is enough" not in a.cli("status").stdout and size("large")["touched_peak_bytes"] == 0, size("large")
    wait_for("the end of the start", advice, seconds=60)
    output = {
        "large": "touched 0.5 of 2.0 GiB: gpu-fraction 0.07 is enough",
        "small": "the working set is 2.5 times the budget: give gpu-fraction 0.28",
        "fits": "touched 1.3 of 2.0 GiB: gpu-fraction 0.18 is enough",
    }
    assert {name: size(name)["size_advice"] for name in gib} == output
    assert {name: size(name)["size_is_far_off"] for name in gib} == {"large": True, "small": True, "fits": False}
    # A peak stays, a second process adds to it.
    hooks["large"].command(f"touched {GIB // 4}")
    second = a.hook(a.dir / "alloc/large/agent.sock")
    second.expect("budget")
    second.command(f"live {GIB}")
    second.command(f"touched {GIB // 2}")
    wait_for("both processes", lambda: size("large")["touched_peak_bytes"] == 3 * GIB // 4)
    second.end()
    wait_for("one process", lambda: len(a.allocation("large")["processes"]) == 1)
    assert size("large")["touched_peak_bytes"] == 3 * GIB // 4

    def row(text, name, title):
        """A cell of a table; cells are two blanks apart."""
        lines = [re.split(r"  +", line.strip()) for line in text.split("\n")]
        titles = next(line for line in lines if title in line)
        return next(line for line in lines if line[0].endswith(name) and len(line) == len(titles))[titles.index(title)]

    status, top = a.cli("status").stdout, a.cli("top", "--once").stdout
    for text, name in ((status, "large"), (top, "p-large/c")):
        assert row(text, name, "TOUCHED") == "256.0 MiB" and row(text, name, "PEAK") == "768.0 MiB", text
    for name, text in output.items():
        sentence = f"ns/p-{name}/c: " + text.replace("0.5 of", "0.8 of").replace("0.07", "0.11")
        assert sentence in status.split("\n"), (sentence, status)
        assert (sentence in top.split("\n")) == (name != "fits"), (sentence, top)
    (share,) = next(
        x for x in json.loads(a.cli("top", "--once", "-o", "json").stdout)["allocations"] if x["id"] == "small"
    )["gpus"]
    assert share["fraction_needed"] == 0.28 and share["touched_peak_bytes"] == 2 * GIB, share
    found = [line for line in a.cli("doctor", check=False).stdout.split("\n") if "working set" in line]
    assert [line.split()[2] for line in found] == ["large:", "small:"], found
    assert all(line.startswith("warn  allocation ") for line in found), found
    metrics = read_metrics(metrics_port(a))
    for name, value in (
        ("touched_bytes", GIB // 4),
        ("touched_peak_bytes", 3 * GIB // 4),
        ("fraction_ratio", 0.5),
        ("fraction_needed_ratio", 0.11),
    ):
        assert re.search(rf'^sluice_{name}{{[^}}]*pod="p-large"[^}}]*}} {value}$', metrics, re.M), (name, metrics)


@test()
def claims_are_shown_by_their_names(a):
    def claimed(id, pod, claim):
        made = {"uid": id, "name": claim}
        gpus = [{"uuid": UUID % 0, "units": 10}]
        text = {"version": 1, "id": id, "gpus": gpus, "settings": {}, "pod": pod, "namespace": "ns", "claim": made}
        (a.dir / "alloc" / id).mkdir(parents=True)
        (a.dir / "alloc" / id / ".tmp").write_text(json.dumps(text))
        (a.dir / "alloc" / id / ".tmp").rename(a.dir / "alloc" / id / "allocation.json")
        wait_for("socket of " + id, lambda: (a.dir / "alloc" / id / "agent.sock").exists())

    claimed("claim-1", "p", "train-gpu-x7")
    claimed("claim-2", "", "shared")  # of several pods
    claimed("claim-3", "q", 5)  # no name
    a.allocate("plain", 10)
    assert [x["claim"] for x in a.status()["allocations"]] == ["train-gpu-x7", "shared", "", ""], a.status()
    for view in (("top", "--once"), ("status",)):
        text = a.cli(*view).stdout
        for name in ("ns/p (claim train-gpu-x7)", "ns/claim shared", "ns/q", "ns/p-plain/c"):
            assert any(f"{name}  " in line for line in text.splitlines()), (view, name, text)


if __name__ == "__main__":
    run()
