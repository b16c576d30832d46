"""No source of more than 400 lines, no Python line of more than 120 columns: lines.py [FILE OR FOLDER...]

A longer file is split along a seam of its contents. Lists (*.def), documents, Go programs of the tests, generated and
third-party files may be longer. clang-format keeps C++ within the columns.
"""

import pathlib
import re
import sys

import source_text

LINES = 400
COLUMNS = 120
SUFFIXES = {".c", ".cc", ".cu", ".h", ".py", ".sh"}
EXEMPT = re.compile(r"proto/kubelet/|.*/(golden|corpus)/")
GENERATED = re.compile(r"\b(?:generated|made) by\b.{0,80}\b(?:do not edit|by hand)\b", re.I)


def is_source(path):
    kind = source_text.language(path)
    return (path.suffix in SUFFIXES or (not path.suffix and kind in ("python", "shell"))) and not EXEMPT.match(
        path.as_posix()
    )


def main(arguments):
    places = [pathlib.Path(place) for place in arguments]
    paths = [path for path in source_text.tracked() if is_source(path)]
    if places:
        paths = [path for path in paths if any(path == place or place in path.parents for place in places)]
    wrong = 0
    for path in paths:
        lines = source_text.read(path).splitlines()
        if len(lines) > LINES and not GENERATED.search("\n".join(lines[:5])):
            wrong += 1
            print(f"{path}: {len(lines)} lines; at most {LINES} are accepted")
        if source_text.language(path) == "python":
            for number, line in enumerate(lines, 1):
                if len(line) > COLUMNS:
                    wrong += 1
                    print(f"{path}:{number}: {len(line)} columns; at most {COLUMNS} are accepted")
    print(f"lines: {len(paths)} files, {wrong} too long", file=sys.stderr)
    return 1 if wrong or not (paths or places) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
