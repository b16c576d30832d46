"""Counts ctest's JUnit file: count_tests.py FILE CTEST_STATUS.

Prints failed and skipped tests, then the one line that ends `make test`.
"""

import sys
import xml.etree.ElementTree as ElementTree


def reason_of(lines):
    """Catch2 prints the reason below "explicitly with message:"; scripts print a line that says SKIP."""
    lines = [line.strip() for line in lines]
    for number, line in enumerate(lines[:-1]):
        if line.endswith("with message:"):
            return lines[number + 1]
    return next((line for line in lines if "skip" in line.lower()), lines[-1] if lines else "no reason printed")


def main(path, status):
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        cases = []
    passed, failed, skipped = [], [], []
    for case in cases:
        name, state = case.get("name"), case.get("status")
        reason = next((s.get("message", "") for s in case.iter("skipped")), "")
        if state == "run":
            passed.append(name)
        elif state == "disabled" or reason.startswith("SKIP_"):
            skipped.append((name, (case.findtext("system-out") or "").strip().splitlines()))
        else:  # failed, timed out, or not run because its program is missing
            failed.append((name, reason))
    for name, lines in skipped:
        print(f"skipped: {name}: {reason_of(lines)}")
    for name, reason in failed:
        print(f"failed: {name} {reason}".rstrip())
    wrong = bool(failed)
    if not cases:
        print("error: no test ran", file=sys.stderr)
        wrong = True
    elif status != 0 and not failed:
        print(f"error: ctest ended with {status} although no test failed", file=sys.stderr)
        wrong = True
    print(f"{len(passed)} passed, {len(failed)} failed" + (f", {len(skipped)} skipped" if skipped else ""))
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
