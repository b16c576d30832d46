"""Headless clauses and the length of sentences, in comments and documents.

prose.py            a table of all areas; fails where one is over its limit
prose.py --list [FILE OR FOLDER...]   each headless clause, and each sentence of more than LONG words

In a headless clause "what" or "who" stands for a noun that is missing, as in "of `what it names`" and "drops `what it
names`": name the thing. Questions do not count, nor "what" before a noun or at the end ("who enforces what"). An area
may have LIMIT headless clauses in 1,000 words; a small area may have one. The mean length of a sentence is limited in
documents, where table cells do not count.
"""

import pathlib
import re
import sys

import source_text

COMMENTS = (
    *("hooklib", "agent", "cli", "common", "deviceplugin", "webhook", "scheduler", "kube", "simgpu", "trace"),
    *("proto", "experiments", "test", "scripts"),
)
LIMIT = 0.3
LONG = 30
MEAN = 22  # of the documents
EXEMPT = re.compile(
    r"docs/lab/|CHANGELOG\.md|LICENSE|.*/(golden|corpus)/|docs/operate/annotations\.md|docs/reference/api\.md"
)

HEADLESS = re.compile(
    r"""(?:^|[.;:,(!?]\s*|\b(?:of|for|to|and|or|than|that|by|in|with|from|on|at|until|while|where|if|as|is|are)\s+)
    (?:what|who|whoever)\s+
    (?:is|was|are|were|has|have|had|will|would|can|may|must|might|should|does|did|do
      |it|a|an|the|they|this|that|these|those|we|you|its|their|no|nothing|others?|one|each
      |nobody|everybody|somebody  # vocabulary: allow (words to find)
      |dies?|died|leaves?|left|comes?|came|goes|went|needs?|lies|lay|stays?|stayed|stands?|holds?|held|makes?|made
      |launches|copies|follows|faults|kernels|programs?|fits?|asks?|reads?|writes?|waits?|moves?|moved|remains?)\b""",
    re.I | re.X,
)
# The object of a verb, or behind a preposition of one more word. "who" behind a noun is a plain relative clause, so it
# counts behind verbs of asking and saying alone.
OBJECT = re.compile(
    r"""(?<=[a-z`])\s+what\s+(?!(?:kind|sort|share|part|size|order|form|way|else)s?\b)[\w`]
    |\b(?:ask|say|tell|show|know|decide|find|see)s?\s+(?:who|whoever)\s+[\w`]""",
    re.X,
)
SENTENCE = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9])")
WORD = re.compile(r"[A-Za-z]{2,}")


def area_of(path):
    name = path.as_posix()
    kind = source_text.language(path)
    if kind is None or EXEMPT.match(name):
        return None
    top = path.parts[0]
    if kind == "markdown":
        return "docs"
    return top if top in COMMENTS else None


def plain(text, markdown):
    if not markdown:
        return text
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}|^\s*(?:#+|[-*+>]|\d+\.)\s+", lambda m: " " * len(m.group()), text)


def headless(text):
    found = list(HEADLESS.finditer(text))
    found += [m for m in OBJECT.finditer(text) if not any(f.start() < m.end() and m.start() < f.end() for f in found)]
    for match in sorted(found, key=re.Match.start):
        ends = re.search(r"[.!?](?:\s|$)", text[match.end() :])
        if ends and ends.group().startswith("?"):
            continue
        yield match


def sentences(text):
    """(offset, number of words) of each sentence; a text of up to three words is a label."""
    last = 0
    for match in [*SENTENCE.finditer(text), None]:
        end = match.start() if match else len(text)
        count = len(text[last:end].split())
        if count > 3:
            yield last, count
        last = match.end() if match else end


class Area:
    def __init__(self):
        self.words, self.headless, self.lengths = 0, 0, []

    @property
    def rate(self):
        return 1000 * self.headless / max(1, self.words)

    @property
    def mean(self):
        return sum(self.lengths) / max(1, len(self.lengths))

    def row(self, name):
        long = sum(length > LONG for length in self.lengths)
        counts = f"{self.words:>8} {self.headless:>9} {self.rate:>10.2f}"
        return f"{name:<14} {counts} {len(self.lengths):>10} {self.mean:>6.1f} {long:>8}"


def measure(paths, show=False):
    areas = {}
    for path in paths:
        name = area_of(path)
        if name is None:
            continue
        area = areas.setdefault(name, Area())
        markdown = source_text.language(path) == "markdown"
        lines = source_text.read(path).splitlines() if markdown else []
        for text, place in source_text.paragraphs(path):
            text = plain(text, markdown)
            area.words += len(WORD.findall(text))
            for match in headless(text):
                area.headless += 1
                if show:
                    start = max(0, match.start() - 25)
                    print(f"{path}:{place(match.start())}: headless: ...{text[start : match.end() + 25]}")
            # A table's cell is rarely a sentence: it would hide how long those of the text are.
            cell = markdown and lines[place(0) - 1].lstrip().startswith("|")
            for offset, length in sentences(text):
                if not cell:
                    area.lengths.append(length)
                if show and length > LONG:
                    print(f"{path}:{place(offset)}: {length} words: {text[offset : offset + 70]}...")
    return areas


def main(arguments):
    paths = source_text.tracked()
    if arguments[:1] == ["--list"]:
        wanted = [pathlib.Path(place) for place in arguments[1:]] or [pathlib.Path()]
        paths = [path for path in paths if any(path == place or place in path.parents for place in wanted)]
    elif arguments:
        sys.exit(f"prose: '{arguments[0]}' is unknown; accepted: --list [FILE OR FOLDER...]")
    areas = measure(paths, show=bool(arguments))
    if not areas:
        sys.exit("prose: no such file with comments or text in this repository")
    total = Area()
    for name in COMMENTS:
        if name in areas:
            total.words += areas[name].words
            total.headless += areas[name].headless
            total.lengths += areas[name].lengths
    print("area              words  headless  per 1,000  sentences   mean  over" + f" {LONG}")
    wrong = []
    rows = [(name, areas[name]) for name in COMMENTS if name in areas]
    rows += [("all comments", total)] + ([("docs", areas["docs"])] if "docs" in areas else [])
    for name, area in rows:
        print(area.row(name))
        if area.headless > max(1, LIMIT * area.words / 1000):
            found = f"{area.headless} headless clauses, {area.rate:.2f} in 1,000 words"
            wrong.append(f"{name}: {found}; at most {LIMIT} are accepted")
    if "docs" in areas and areas["docs"].mean > MEAN:
        wrong.append(f"docs: {areas['docs'].mean:.1f} words a sentence in the mean; at most {MEAN} are accepted")
    for line in wrong:
        print(f"prose: {line}", file=sys.stderr)
    if wrong and not arguments:
        print("prose: python3 scripts/prose.py --list FOLDER shows each", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
