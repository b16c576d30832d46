"""Writes one row of docs/lab/nightly.md: nightly_table.py PART DATE COMMIT RESULT DURATION SCOPE DETAILS

The table has one row a part, the last run. A part of the list that was never recorded has a row that says so. Earlier
results are in the history of the file.
"""

import re
import sys

import source_text

PAGE = source_text.ROOT / "docs/lab/nightly.md"
HEAD = """# Nightly results

The last run of each part of scripts/nightly, which writes this page:

- `thread`: the tests under ThreadSanitizer
- `address`: the tests under AddressSanitizer and UndefinedBehaviorSanitizer
- `fuzz`: every fuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer
- `tidy`: clang-tidy of the whole tree, without its static analyzer
- `analyze`: clang-tidy's static analyzer, of the whole tree
- `threads`: clang's thread-safety analysis
- `differential`: random programs, hooked and unhooked (test/differential); plans (test/unit/plan_fuzz_test.cc)
- `thrash`: work that hurts, settled, against demand paging (experiments/bench/thrash_table.py)
- `cluster`: batch queues and claims on the local cluster, and the product test on Kubernetes' other versions
- `arm64`: programs and unit tests for arm64 under qemu, and the image index

| part | date (UTC) | commit | result | duration | scope | details |
|---|---|---|---|---|---|---|
"""


def main(row):
    cells = [" ".join(value.split()).replace("|", "\\|") for value in row]
    rows = {}
    if PAGE.exists():
        lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
        rows = {line.split("|")[1].strip(): line for line in lines[1:]}
    rows[cells[0]] = "| " + " | ".join(cells) + " |"
    for part in re.findall(r"^- `(\w+)`: ", HEAD, re.M):
        rows.setdefault(part, f"| {part} | - | - | no result yet | - | - | - |")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(HEAD + "\n".join(rows[part] for part in sorted(rows)) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 8:
        sys.exit("nightly_table: accepted: PART DATE COMMIT RESULT DURATION SCOPE DETAILS")
    main(sys.argv[1:])
