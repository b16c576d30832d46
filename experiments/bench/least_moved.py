#!/usr/bin/env python3
"""The minimum of bytes that any engine moves in a step of a trace, the future known, if it writes back live pages.

    sluice-trace uses experiments/traces/transformer.sltrace uses.txt
    experiments/bench/least_moved.py uses.txt --budget-gib 4 [--step N]

Needs SciPy (PyPI), which no test does. Belady's bound (sluice-trace bound) drops dirty, live pages at no cost if they
are freed before their next read. An engine cannot do that: it would lose bytes if the program did something else.
Here a page that is evicted before its next use is fetched again (one page in). Its first eviction after a write
copies it (one page out), whether it is read again or freed; a clean page is evicted at no cost. Linear programming
chooses the pages that stay between two uses. Pages may stay in part, so no schedule moves fewer bytes. The step is
assumed to repeat: memory that is live at its end is used in the next one as in this one.
"""

import argparse
import collections
import math
import sys

PAGE = 65536


def read(lines):
    """Steps, each a list of launches and frees: ("L", [(page, writes)]) and ("D", page)."""
    steps = [[]]
    for line in lines:
        if line[0] == "S":
            steps.append([])
        elif line[0] == "D":
            steps[-1].append(("D", int(line[2:])))
        else:
            steps[-1].append(("L", [(int(word[:-1]), word[-1] == "w") for word in line.split()[1:]]))
    return steps


def min_pages(step, budget_pages):
    """The minimum of pages in and out in this step."""
    import numpy
    import scipy.optimize
    import scipy.sparse

    life, held = collections.defaultdict(list), []  # by page: uses and frees in order; by launch: pages in use
    for kind, what in step:
        if kind == "D":
            life[what].append((len(held) - 0.5, "d"))
        else:
            for page, writes in what:
                life[page].append((len(held), "w" if writes else "r"))
            held.append(len(what))
    launches = len(held)
    held = numpy.array(held, dtype=float)
    # By variable; (variable, from launch, to launch, pages); (variable, variable of its copy).
    cost, stays, copied = [], [], []
    for events, pages in collections.Counter(tuple(e) for e in life.values()).items():  # pages with equal events
        begin = next((i for i, (_, what) in enumerate(events) if what in "wd"), 0)
        written, copies = None, collections.defaultdict(list)
        for k in range(len(events)):
            i = (begin + k) % len(events)
            (at, what), (until, then) = events[i], events[(i + 1) % len(events)]
            if what == "d":
                written = None
                continue
            if what == "w":
                written = i
            first, end = math.floor(at) + 1, math.ceil(until)
            spans = [(first, end)] if until > at else [(first, launches), (0, end)]
            spans = [span for span in spans if span[0] < span[1]]
            if not spans:
                continue
            for a, b in spans:
                stays.append((len(cost), a, b, pages))
                held[a:b] += pages
            if written is not None:
                copies[written].append(len(cost))
            cost.append(pages if then != "d" else 0)
        for evicted in copies.values():
            copied += [(variable, len(cost)) for variable in evicted]
            cost.append(pages)
    # A variable is the share of the pages that does not stay, or that is copied.
    full = {launch: i for i, launch in enumerate(numpy.flatnonzero(held > budget_pages))}
    entries = [
        (full[launch], variable, -pages) for variable, a, b, pages in stays for launch in range(a, b) if launch in full
    ]
    limits = [budget_pages - held[launch] for launch in full]
    for variable, copy in copied:
        entries += [(len(limits), variable, 1), (len(limits), copy, -1)]
        limits.append(0)
    if not full:
        return 0
    rows, columns, values = zip(*entries)
    matrix = scipy.sparse.csr_matrix((values, (rows, columns)), shape=(len(limits), len(cost)))
    solved = scipy.optimize.linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
    if solved.status != 0:
        sys.exit(f"least_moved: {solved.message}")
    return solved.fun


def check():
    """Cases with an obvious answer."""

    def of(text, budget):
        return round(min_pages(read(text.splitlines())[0], budget), 6)

    cases = [
        ("L 0r\nL 1r\nL 0r\nL 1r", 2, 0),
        ("L 0r\nL 1r", 1, 2),
        ("L 0w\nL 1w", 1, 4),
        ("L 0w\nL 1w\nD 1", 1, 2),  # 0 is evicted for 1 and fetched again; 1 is freed at once
        ("L 0w\nL 1w\nL 1r\nD 0\nD 1", 1, 1),  # 0 is never read again, and is copied all the same
        ("L 0w\nL 0r\nL 1r\nL 0r\nL 1r", 1, 5),
    ]  # 0 is copied once and fetched twice
    for text, budget, pages in cases:
        assert of(text, budget) == pages, (text, budget, pages, of(text, budget))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uses", help="the output of `sluice-trace uses`")
    parser.add_argument("--budget-gib", type=float, required=True)
    parser.add_argument(
        "--step",
        type=int,
        default=-2,
        help="index of the step (default: the last but one; frees after the last are unknown)",
    )
    options = parser.parse_args()
    check()
    with open(options.uses) as lines:
        steps = read(lines)
    pages = min_pages(steps[options.step], int(options.budget_gib * (1 << 30)) // PAGE)
    print(f"{pages * PAGE / (1 << 20):.0f} MiB in and out a step at least, in {options.budget_gib:.2f} GiB")


if __name__ == "__main__":
    main()
