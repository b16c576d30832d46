#!/usr/bin/env python3
"""docs/operate/sluice.fc beside a policy's own file contexts: `restorecon` must leave sluice's labels alone.

By libselinux's own matchpathcon where it is installed (selinux-utils), and by the rules of file_contexts(5) in any
case: each pattern is anchored, and of those that match the one with the longest fixed beginning wins.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS = (ROOT / "docs/operate/sluice.fc").read_text()
# Of Fedora's and RHEL's policies: the label of a new file below /var/lib, and of containers' storage.
POLICY = """/.*	system_u:object_r:default_t:s0
/var(/.*)?	system_u:object_r:var_t:s0
/var/lib(/.*)?	system_u:object_r:var_lib_t:s0
/var/lib/kubelet(/.*)?	system_u:object_r:container_var_lib_t:s0
/var/lib/kubelet/pods(/.*)?	system_u:object_r:container_file_t:s0
"""
CONTAINER, LIB = "container_file_t", "var_lib_t"
EXPECTED = {
    "/var/lib/sluice": LIB,
    "/var/lib/sluice/lib": CONTAINER,
    "/var/lib/sluice/lib/0.1.0-0123456789abcdef": CONTAINER,
    "/var/lib/sluice/lib/0.1.0-0123456789abcdef/libsluice.so": CONTAINER,
    "/var/lib/sluice/alloc": LIB,  # a container sees its own folder alone
    "/var/lib/sluice/alloc/pod-1764100000-00aa": CONTAINER,
    "/var/lib/sluice/alloc/pod-1764100000-00aa/allocation.json": CONTAINER,
    "/var/lib/sluice/alloc/pod-1764100000-00aa/agent.sock": CONTAINER,
    "/var/lib/sluice/alloc/claim-0f3a2b4c-1111-2222-3333-444455556666": CONTAINER,  # by DRA
    "/var/lib/sluice/alloc/claim-0f3a2b4c-1111-2222-3333-444455556666/agent.sock": CONTAINER,
    "/var/lib/sluice/alloc/run-7": LIB,  # `sluice run`, outside of containers
    "/var/lib/sluice-other": LIB,
}


def fixed_length(pattern):
    return len(re.split(r"[.^$?*+|\[({]", pattern, maxsplit=1)[0])


def by_rules(text, path):
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    matching = [(fixed_length(rule), i, label) for i, (rule, label) in enumerate(rows) if re.fullmatch(rule, path)]
    return max(matching)[2].split(":")[2]


def by_libselinux(file, path):
    output = subprocess.run(["matchpathcon", "-n", "-f", file, path], capture_output=True, text=True, check=True).stdout
    return output.strip().split(":")[2]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "file_contexts")
        file.write_text(POLICY + OURS)
        for path, wanted in EXPECTED.items():
            given = {"the rules": by_rules(POLICY + OURS, path)}
            if shutil.which("matchpathcon"):
                given["libselinux"] = by_libselinux(file, path)
            for source, label in given.items():
                if label != wanted:
                    failed += 1
                    print(f"FAILED: {path}: {label} by {source}, {wanted} is needed")
    # The page shows the same patterns for semanage.
    page = (ROOT / "docs/operate/platforms.md").read_text()
    for line in OURS.splitlines():
        if not line.startswith("#") and f"'{line.split()[0]}'" not in page:
            failed += 1
            print(f"FAILED: docs/operate/platforms.md does not show {line.split()[0]}")
    print(f"FAILED: {failed}" if failed else f"{len(EXPECTED)} paths have the labels that containers need")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
