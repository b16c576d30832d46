#!/usr/bin/env python3
"""Compares records of differential_programs: compare.py UNHOOKED HOOKED...

Prints how many programs differ, and the first different line of each kind. Programs behind the last one of a hooked
record are named as not run: its time was over. Exit status 1 if any differs, or if a hooked record has no program.
"""

import re
import sys

LINE = re.compile(r"^(\d+) (ok|step-\d+|died-\d+|exit-\d+|hangs)\b")


def load(path):
    """{seed: lines}; the first line is the status without the hash."""
    records, seed = {}, None
    for line in open(path, errors="replace"):
        line = line.rstrip("\n")
        if found := LINE.match(line):
            seed = int(found[1])
            records[seed] = [found[2]]
        elif seed is not None:
            records[seed].append(line)
    return records


def difference(expected, actual):
    if actual is None:
        return "", "did not run"
    for want, got in zip(expected, actual):
        if want != got:
            return want, got
    return (expected[-1], "ends before") if len(expected) > len(actual) else (f"{len(expected)} lines", actual[-1])


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    expected = load(sys.argv[1])
    failed = 0
    illegal = {seed: record for seed, record in expected.items() if record[0] != "ok"}
    print(f"{sys.argv[1]}: {len(expected)} programs, {len(illegal)} end early")
    for seed, record in list(illegal.items())[:20]:
        print(f"  seed {seed}: {record[0]}: {record[-1][:200]}")
    for path in sys.argv[2:]:
        actual, kinds, count = load(path), {}, 0
        last = max(actual, default=None)
        compared = {seed: record for seed, record in expected.items() if last is None or seed <= last}
        for seed, record in compared.items():
            if actual.get(seed) == record or (seed in illegal and record[0] in ("hangs", "died")):
                continue
            count += 1
            want, got = difference(record, actual.get(seed))
            kind = (re.sub(r"[0-9a-f]{16}|\d+", "N", want)[:60], re.sub(r"[0-9a-f]{16}|\d+", "N", got)[:60])
            kinds.setdefault(kind, []).append((seed, want, got))
        failed += count
        left = len(expected) - len(compared)
        not_run = f", {left} behind seed {last} not run" if left else ""
        print(f"{path}: {count} of {len(compared)} differ{not_run}")
        for found in sorted(kinds.values(), key=lambda found: -len(found))[:12]:
            seed, want, got = found[0]
            print(f"  {len(found)} like seed {seed}: unhooked '{want[:150]}', hooked '{got[:150]}'")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
