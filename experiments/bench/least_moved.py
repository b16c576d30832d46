#!/usr/bin/env python3
"""The least that any engine moves in a step of a trace, the future known, if it copies what lives before it takes its place.

    sluice-trace uses experiments/traces/transformer.sltrace uses.txt
    experiments/bench/least_moved.py uses.txt --budget-gib 4 [--step N]

Needs SciPy (PyPI), which no test does. Belady's bound (sluice-trace bound) lets contents leave for nothing that live on and were written, where
they are freed before anybody reads them: an engine cannot, since it would lose bytes if the program did something else. Here a page that leaves
before its next use comes back (one page in), and the first time that it leaves behind a write, it is copied (one page out), whether it is read
again or freed; what was copied and not written since leaves for nothing. Which pages stay between two uses is chosen for the fewest bytes, by
linear programming: pages may stay in part, so no schedule moves less. The step is taken to repeat itself: what lives at its end is used in the
next one as in this.
"""
import argparse
import collections
import math
import sys

PAGE = 65536


def read(lines):
    """Steps; of each its launches and deaths: ("L", [(page, writes)]) and ("D", page)."""
    steps = [[]]
    for line in lines:
        if line[0] == "S":
            steps.append([])
        elif line[0] == "D":
            steps[-1].append(("D", int(line[2:])))
        else:
            steps[-1].append(("L", [(int(word[:-1]), word[-1] == "w") for word in line.split()[1:]]))
    return steps


def least(step, budget_pages):
    """Pages in and out in this step, at the least."""
    import numpy
    import scipy.optimize
    import scipy.sparse
    life, held = collections.defaultdict(list), []  # of each page: uses and deaths in order; pages used by each launch
    for kind, what in step:
        if kind == "D":
            life[what].append((len(held) - 0.5, "d"))
        else:
            for page, writes in what:
                life[page].append((len(held), "w" if writes else "r"))
            held.append(len(what))
    launches = len(held)
    held = numpy.array(held, dtype=float)
    cost, stays, copied = [], [], []  # by variable; (variable, from launch, to launch, pages); (variable, that of its copy)
    for events, pages in collections.Counter(tuple(e) for e in life.values()).items():  # pages that live alike
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
        for gone in copies.values():
            copied += [(variable, len(cost)) for variable in gone]
            cost.append(pages)
    # A variable is the share that does not stay, or that is copied.
    full = {launch: i for i, launch in enumerate(numpy.flatnonzero(held > budget_pages))}
    entries = [(full[launch], variable, -pages) for variable, a, b, pages in stays for launch in range(a, b) if launch in full]
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
    """Cases whose answer is seen at once."""
    def of(text, budget):
        return round(least(read(text.splitlines())[0], budget), 6)
    cases = [("L 0r\nL 1r\nL 0r\nL 1r", 2, 0), ("L 0r\nL 1r", 1, 2), ("L 0w\nL 1w", 1, 4),
             ("L 0w\nL 1w\nD 1", 1, 2),                # 0 leaves for 1 and comes back; 1 dies at once
             ("L 0w\nL 1w\nL 1r\nD 0\nD 1", 1, 1),     # 0 is never read again, and is copied all the same
             ("L 0w\nL 0r\nL 1r\nL 0r\nL 1r", 1, 5)]  # 0 is copied once and comes twice
    for text, budget, pages in cases:
        assert of(text, budget) == pages, (text, budget, pages, of(text, budget))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uses", help="what `sluice-trace uses` wrote")
    parser.add_argument("--budget-gib", type=float, required=True)
    parser.add_argument("--step", type=int, default=-2, help="which (default: the last but one; behind the last nobody knows what is freed)")
    options = parser.parse_args()
    check()
    with open(options.uses) as lines:
        steps = read(lines)
    pages = least(steps[options.step], int(options.budget_gib * (1 << 30)) // PAGE)
    print(f"{pages * PAGE / (1 << 20):.0f} MiB in and out a step at the least, in {options.budget_gib:.2f} GiB")


if __name__ == "__main__":
    main()
