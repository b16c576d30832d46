"""Broken links and tables in Markdown: links.py [FILE...]

Looks up files and headings of this repository. Links to other sites are not followed. A table begins with a head and a
line of dashes, and its rows have as many cells as the head.
"""

import pathlib
import re
import sys

import source_text

LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s*\[[^\]]+\]:\s*<?([^>\s]+)>?", re.M
)
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$", re.M)
ANCHOR = re.compile(r"<a\s+(?:name|id)=\"([^\"]+)\"")


def without_code(text):
    """Code is blank, lines stay where they are."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r"(?ms)^([ \t]*)(```|~~~).*?^\1\2[ \t]*$", blank, text)
    return re.sub(r"`[^`\n]+`", blank, text)


def anchors(path, known):
    """As GitHub makes them: lower case, blanks to hyphens, punctuation away, a number behind the second of a name."""
    if path not in known:
        text = path.read_text(errors="replace")
        fenced = re.sub(r"(?ms)^([ \t]*)(```|~~~).*?^\1\2[ \t]*$", "", text)
        found, seen = set(ANCHOR.findall(text)), {}
        for _, title in HEADING.findall(fenced):
            title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
            name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        known[path] = found
    return known[path]


def broken_rows(text):
    """(line, fault) of each row that a reader does not see as a row of a table. `text`: without code."""
    for table in re.finditer(r"(?m)(?:^\|.*(?:\n|\Z))+", text):
        first = text.count("\n", 0, table.start()) + 1
        rows = table.group().splitlines()
        if len(rows) < 2 or not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+\s*", rows[1]):
            yield first, "a table without a line of dashes below its head"
            continue
        counts = [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows]
        for number, count in enumerate(counts, first):
            if count != counts[0]:
                yield number, f"{count} cells in a table of {counts[0]} columns"


def main(arguments):
    paths = [pathlib.Path(place) for place in arguments] or source_text.tracked("*.md")
    known, links, wrong = {}, 0, 0
    for path in paths:
        here = (source_text.ROOT / path).resolve()
        text = without_code(source_text.read(path))
        for line, fault in broken_rows(text):
            wrong += 1
            print(f"{path}:{line}: {fault}")
        for match in LINK.finditer(text):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            links += 1
            name, _, anchor = target.partition("#")
            file = (here.parent / name).resolve() if name else here
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            if not file.is_relative_to(source_text.ROOT) or not file.exists():
                wrong += 1
                print(f"{where}: {target}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file, known):
                wrong += 1
                print(f"{where}: {target}: {file.name} has no heading #{anchor}")
    print(f"links: {len(paths)} documents, {links} links, {wrong} broken", file=sys.stderr)
    return 1 if wrong or not paths else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
