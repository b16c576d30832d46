#!/usr/bin/env python3
"""docs/operate/metrics.md contains the output of `sluice-agent --print-metrics` between two marks.

metrics_page_test.py BIN_DIR [--write]. With --write it puts the output into the page.
"""

import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/operate/metrics.md"
BEGIN = "<!-- Written by `sluice-agent --print-metrics`: test/agent/metrics_page_test.py compares and writes it. -->\n"
END = "<!-- End of the written part. -->\n"


def main():
    output = subprocess.run(
        [pathlib.Path(sys.argv[1]) / "sluice-agent", "--print-metrics"], capture_output=True, text=True, check=True
    ).stdout
    before, found_begin, rest = PAGE.read_text().partition(BEGIN)
    written, found_end, after = rest.partition(END)
    if not found_begin or not found_end:
        sys.exit(f"{PAGE.name}: a mark is missing")
    if sys.argv[2:] == ["--write"]:
        PAGE.write_text(before + BEGIN + output + END + after)
    elif written != output:
        sys.exit(f"{PAGE.name} differs from `sluice-agent --print-metrics`; {sys.argv[0]} BIN_DIR --write updates it")


if __name__ == "__main__":
    main()
