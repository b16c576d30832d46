"""Locks that clang's thread-safety analysis does not see, and locks that guard nothing it knows: locks.py

The analysis follows annotated types alone. In these folders, only a class that wraps such a lock may name it. Each lock
is named by its data (SLUICE_GUARDED_BY, SLUICE_PT_GUARDED_BY), or by a function that hands out a reference to them
(SLUICE_REQUIRES). A lock that orders calls says so in a comment.
"""

import re
import sys

import source_text

ANNOTATED = ("agent", "cli", "common", "deviceplugin", "hooklib", "kube", "proto", "scheduler", "trace", "webhook")
LOCK = re.compile(
    r"\bstd::(?:recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex\b"
    r"|\bpthread_(?:mutex|rwlock|spinlock)_t\b|\babsl::Mutex\b"
)
DECLARED = re.compile(r"^\s*(?:(?:static|mutable|extern|inline|sluice::)\s*)*Mutex (\w+(?:, \w+)*)(?:;| SLUICE_)", re.M)
GUARDS = re.compile(
    r"SLUICE_(?:PT_)?GUARDED_BY\((?:\w+(?:\.|->))*(\w+)\)"
    r"|&\s*\w+\([^;{}()]*\)(?: const)? SLUICE_REQUIRES\((?:\w+(?:\.|->))*(\w+)\)"
)
UNANNOTATED = "unannotated lock:"  # in a comment on the line or above it, with the reason
GUARDS_NO_DATA = "guards no data:"  # the same


def is_excused(lines, number, marker):
    """Whether a comment has the marker and a reason: on the line, or in the lines of comment right above it."""
    near = [lines[number - 1]]
    for line in reversed(lines[: number - 1]):
        if not line.lstrip().startswith("//"):
            break
        near.append(line)
    return any(re.search(rf"{marker} *\S", line, re.I) for line in near)


def code_of(path):
    """The file's text without comments and string literals, line by line as it was."""
    parts = source_text.segments(path)
    return "".join(text if kind == "code" else re.sub(r"[^\n]", " ", text) for kind, _, text in parts)


def guarding(path, code):
    """The names of the locks that guard something in the file, or in a header that declares them for it."""
    names = {name for found in GUARDS.findall(code) for name in found if name}
    for header in re.findall(r'^#include "([^"]+)"', source_text.read(path), re.M):
        declared = source_text.ROOT / header
        if declared.is_file() and "extern Mutex" in (text := source_text.read(declared)):
            names.update(name for found in DECLARED.findall(text) for name in found.split(", "))  # it is judged there
    return names


def findings(path):
    """Line, lock and fault of each lock of the file that the analysis cannot judge."""
    text = source_text.read(path)
    if "SLUICE_CAPABILITY(" in text or not ("Mutex" in text or LOCK.search(text)):
        return
    lines, code = text.splitlines(), code_of(path)
    for number, line in enumerate(code.splitlines(), 1):
        if LOCK.search(line) and not is_excused(lines, number, UNANNOTATED):
            yield number, line.strip(), "a lock without annotations (use common/mutex.h)"
    names = guarding(path, code)
    for found in DECLARED.finditer(code):
        number = code.count("\n", 0, found.start(1)) + 1
        for name in found[1].split(", "):
            if name not in names and not is_excused(lines, number, GUARDS_NO_DATA):
                yield number, name, f"a lock that guards nothing by name (SLUICE_GUARDED_BY, or '{GUARDS_NO_DATA} why')"


def report(places=()):
    """Prints each such lock, and returns their number. `places`: only within these files and folders."""
    bad = 0
    for path in source_text.tracked("*.h", "*.cc"):
        within = not places or any((source_text.ROOT / path).is_relative_to(place) for place in places)
        if path.parts[0] not in ANNOTATED or not within:
            continue
        for number, lock, fault in findings(path):
            bad += 1
            print(f"{path}:{number}: {fault}: {lock}", file=sys.stderr)
    return bad


if __name__ == "__main__":
    found = report()
    print(f"locks: {found} that the analysis cannot judge in {', '.join(ANNOTATED)}", file=sys.stderr)
    sys.exit(1 if found else 0)
