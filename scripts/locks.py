"""Locks that clang's thread-safety analysis does not see: locks.py

The analysis follows annotated types alone. In these folders, only a class that wraps such a lock may name it.
"""

import re
import sys

import source_text

ANNOTATED = ("agent", "hooklib", "trace")  # trace: its recorder runs inside the hooked process
LOCK = re.compile(
    r"\bstd::(?:recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex\b"
    r"|\bpthread_(?:mutex|rwlock|spinlock)_t\b|\babsl::Mutex\b"
)
UNANNOTATED = "unannotated lock:"  # in a comment on the line or above it, with the reason


def report(places=()):
    """Prints each such lock, and returns their number. `places`: only within these files and folders."""
    bad = 0
    for path in source_text.tracked("*.h", "*.cc"):
        within = not places or any((source_text.ROOT / path).is_relative_to(place) for place in places)
        if path.parts[0] not in ANNOTATED or not within:
            continue
        text = source_text.read(path)
        if "SLUICE_CAPABILITY(" in text:
            continue
        lines = text.splitlines()
        code = "".join(
            part[2] if part[0] == "code" else re.sub(r"[^\n]", " ", part[2]) for part in source_text.segments(path)
        )
        for number, line in enumerate(code.splitlines(), 1):
            if LOCK.search(line) and not any(UNANNOTATED in near for near in lines[max(0, number - 2) : number]):
                bad += 1
                print(
                    f"{path}:{number}: a lock without annotations (use common/mutex.h): {line.strip()}",
                    file=sys.stderr,
                )
    return bad


if __name__ == "__main__":
    found = report()
    print(f"locks: {found} without annotations in {', '.join(ANNOTATED)}", file=sys.stderr)
    sys.exit(1 if found else 0)
