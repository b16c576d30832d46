"""Lengths: lines.py [FILE OR FOLDER...]

No source of more than 400 lines, no Python line of more than 120 columns, no README.md of the root and no design note
of more than 120 lines, no glossary of more than 60 terms or with a term without a source.

A longer file is split along a seam of its contents. Lists (*.def), documents, generated and third-party files may
be longer. clang-format keeps C++ within the columns.
"""

import pathlib
import re
import sys

import source_text

LINES = 400
COLUMNS = 120
PAGE_LINES = 120
PAGES = re.compile(r"README\.md|docs/design/.*\.md")
GLOSSARY, TERMS = pathlib.Path("docs/reference/glossary.md"), 60
SUFFIXES = {".c", ".cc", ".cu", ".go", ".h", ".py", ".sh"}
EXEMPT = re.compile(r"proto/kubelet/|.*/(golden|corpus)/")
GENERATED = re.compile(r"\b(?:generated|made) by\b.{0,80}\b(?:do not edit|by hand)\b", re.I)


def is_source(path):
    kind = source_text.language(path)
    return (path.suffix in SUFFIXES or (not path.suffix and kind in ("python", "shell"))) and not EXEMPT.match(
        path.as_posix()
    )


def glossary(text):
    """The terms, and those without a source."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| term |")]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return [row[0] for row in rows], [row[0] for row in rows if len(row) < 3 or not row[2]]


def pages(paths):
    """The faults of the documents, a line each."""
    for path in paths:
        text = source_text.read(path)
        count = len(text.splitlines())
        if PAGES.fullmatch(path.as_posix()) and count > PAGE_LINES:
            yield f"{path}: {count} lines; at most {PAGE_LINES} are accepted"
        if path == GLOSSARY:
            terms, bare = glossary(text)
            if len(terms) > TERMS:
                yield f"{path}: {len(terms)} terms; at most {TERMS} are accepted"
            yield from (f"{path}: '{term}' has no source" for term in bare)


def main(arguments):
    places = [pathlib.Path(place) for place in arguments]
    paths = source_text.tracked()
    if places:
        paths = [path for path in paths if any(path == place or place in path.parents for place in places)]
    found = list(pages(path for path in paths if path.suffix == ".md"))
    print("".join(line + "\n" for line in found), end="")
    wrong = len(found)
    paths = [path for path in paths if is_source(path)]
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
    sys.exit(main(source_text.arguments()))
