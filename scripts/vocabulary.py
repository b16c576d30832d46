"""Finds retired words by the list in vocabulary.txt: vocabulary.py [--counts] [FILE OR FOLDER...]

Prints each use with its line and the term to use; --counts prints instead how many uses each rule finds.
"""

import bisect
import collections
import concurrent.futures
import functools
import os
import pathlib
import re
import sys

import source_text

LIST = pathlib.Path(__file__).with_name("vocabulary.txt")
KINDS = {"code", "comments", "messages", "docs", "names"}
GROUPS = {"words": {"comments", "messages", "docs"}, "all": KINDS}
EXEMPT = re.compile(
    r"docs/lab/|docs/design/adr/|CHANGELOG\.md|LICENSE|scripts/(?:vocabulary\.txt|checks_test\.py|packages\.)"
    r"|proto/kubelet/|experiments/traces/|.*/(?:golden|corpus)/|.*/go\.(?:mod|sum)"
)
ALLOW = "vocabulary: allow"


class Rule:
    def __init__(self, number, where, pattern, term, groups):
        self.number, self.pattern, self.term = number, pattern, term
        where, _, beside = where.partition("-")
        where, _, folders = where.partition("@")
        self.kinds = set()
        for name in where.split(","):
            if name not in KINDS and name not in GROUPS:
                raise ValueError(f"'{name}' is unknown; accepted: {', '.join(sorted(KINDS | set(GROUPS)))}")
            self.kinds |= GROUPS.get(name, {name})
        self.folders = [folder for name in folders.split(",") if name for folder in groups.get(name, [name])]
        self.beside = [name for name in beside.split(",") if name]
        capitals = re.search(r"[A-Z]", re.sub(r"\\.", "", pattern))
        self.any_case = not capitals
        self.regex = re.compile(pattern)
        self.needles = needles(pattern)

    def applies(self, kind, name):
        return (
            kind in self.kinds
            and (not self.folders or any(within(name, folder) for folder in self.folders))
            and not any(within(name, folder) for folder in self.beside)
        )


def longest_runs(branches):
    """The longest literal of each branch in lower case, or nothing where a branch has none."""
    found = []
    for branch in branches.split("|"):
        runs = re.findall(r"[A-Za-z_ ]{3,}", re.sub(r"\w[?*{]", "\0", branch))
        if not runs:
            return []
        found.append(max(runs, key=len).lower())
    return found


def needles(pattern):
    """Literals of which each match has at least one, to skip a text quickly; empty where they are not plain to see."""
    flat = re.sub(r"\\.|\[[^\]]*\]", "\0", pattern)
    rest = flat
    while (shorter := re.sub(r"\([^()]*\)", "\0", rest)) != rest:
        rest = shorter
    if found := longest_runs(rest):
        return found
    if "|" not in rest and not re.search(r"\([^)]*\(", flat):
        # A group that is neither optional nor a look-around.
        for group in re.findall(r"\(\?:([^()]*)\)(?![?*{])", flat):
            if found := longest_runs(group):
                return found
    return []


def within(name, folder):
    return name == folder or name.startswith(folder + "/")


def read_rules(path):
    rules, groups = [], {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("folders "):
                name, folders = line.removeprefix("folders ").split(" = ")
                groups[name.strip()] = folders.split()
                continue
            rest, term = line.split(" => ")
            where, pattern = rest.split(None, 1)
            rules.append(Rule(number, where, pattern.strip(), term.strip(), groups))
        except (ValueError, re.error) as error:
            sys.exit(f"{path.name}:{number}: {error}; a rule is WHERE  EXPRESSION  =>  TERM")
    return rules


def texts(path):
    """(kind, text, place) of all parts of a file that rules apply to; `place(offset)` is the line of a character."""
    whole = source_text.read(path)
    language = source_text.language(path)
    line_starts = [0, *(match.end() for match in re.finditer("\n", whole))]

    def line_of(offset):
        return bisect.bisect_right(line_starts, offset)

    yield "names", path.as_posix(), lambda _: 1
    if language == "markdown":
        # As it stands, blocks of code too. A line break is a blank, so that a phrase may cross it.
        yield "docs", whole.replace("\n", " "), line_of
        return
    comments, starts, places = [], [0], []
    for text, place in source_text.paragraphs(path):
        comments.append(text)
        places.append(place)
        starts.append(starts[-1] + len(text) + 1)

    def comment_line(offset):
        index = bisect.bisect_right(starts, offset) - 1
        return places[index](offset - starts[index])

    yield "comments", "\n".join(comments), comment_line
    # The rest keeps its offsets: all that is of another kind is blank.
    kept = {"code": [], "messages": []}
    for kind, _, text in source_text.segments(path):
        blank = " " * len(text)
        kept["code"].append(text if kind in ("code", "mixed") else blank)
        kept["messages"].append(text.replace("\n", " ") if kind in ("string", "mixed") else blank)
    yield "code", "".join(kept["code"]), line_of
    yield "messages", "".join(kept["messages"]), line_of


def whole_word(text, match):
    before = re.search(r"\w*\Z", text[max(0, match.start() - 60) : match.start()])
    return (
        before.group()
        + text[match.start() : match.end()]
        + re.match(r"\w*", text[match.end() : match.end() + 60]).group()
    )


def is_identifier(text, match):
    """In prose a word counts as an identifier where it looks like one, or stands between backticks."""
    return re.search(r"[a-z][A-Z]|_", whole_word(text, match)) or text[match.start() - 1 : match.start()] == "`"


def uses(rules, path):
    name = path.as_posix()
    lines = source_text.read(path).splitlines()
    rules = [rule for rule in rules if any(rule.applies(kind, name) for kind in KINDS)]
    found = {}
    for kind, text, place in texts(path):
        small = text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
        for rule in rules:
            if rule.needles and not any(needle in small for needle in rule.needles):
                continue
            direct = rule.applies(kind, name)
            if not direct and (kind == "names" or not rule.applies("code", name)):
                continue
            for match in rule.regex.finditer(small if rule.any_case else text):
                if not direct and not is_identifier(text, match):
                    continue
                line = place(match.start())
                if not any(ALLOW in near for near in lines[max(0, line - 2) : line + 1]):
                    found.setdefault((line, whole_word(text, match)), rule)
    return [
        (line, word, rule.number, rule.term) for (line, word), rule in sorted(found.items(), key=lambda item: item[0])
    ]


def main(arguments):
    counts = arguments[:1] == ["--counts"]
    places = [pathlib.Path(place) for place in arguments[counts:]]
    for place in places:
        if not (source_text.ROOT / place).exists():
            sys.exit(f"vocabulary: '{place}' is no file or folder of this repository")
    rules = read_rules(LIST)
    paths = [path for path in source_text.tracked() if source_text.language(path) and not EXEMPT.match(path.as_posix())]
    if places:
        paths = [path for path in paths if any(path == place or place in path.parents for place in places)]
    total, by_rule = 0, collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count() if len(paths) > 50 else 1) as pool:
        for path, found in zip(paths, pool.map(functools.partial(uses, rules), paths, chunksize=16), strict=True):
            total += len(found)
            for line, word, number, term in found:
                by_rule[number] += 1
                if not counts:
                    print(f"{path}:{line}: '{word}': {term}")
    if counts:
        for rule in rules:
            print(f"{by_rule[rule.number]:>6}  {LIST.name}:{rule.number}  {rule.pattern}")
    print(f"vocabulary: {len(paths)} files, {len(rules)} rules, {total} retired words", file=sys.stderr)
    if total and not counts:
        print(
            f"vocabulary: the list is scripts/{LIST.name}; a word that must stay: '{ALLOW}' and why, on its line",
            file=sys.stderr,
        )
    return 1 if total or not (paths or places) else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
