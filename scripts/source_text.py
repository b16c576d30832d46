"""The repository's files for the checks of scripts/: their names, their languages, and their parts.

The parts of a file are code, comments and string literals. By itself it prints the files of the languages that are
named: source_text.py python|shell|c|config|markdown...
"""

import bisect
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent

SUFFIXES = {
    ".c": "c",
    ".cc": "c",
    ".cu": "c",
    ".def": "c",
    ".go": "c",
    ".h": "c",
    ".in": "c",
    ".proto": "c",
    ".py": "python",
    ".sh": "shell",
    ".cmake": "config",
    ".yaml": "config",
    ".yml": "config",
    ".tpl": "config",
    ".toml": "config",
    ".json": "config",
    ".md": "markdown",
}
NAMES = {
    "CMakeLists.txt": "config",
    "Dockerfile": "config",
    "Makefile": "config",
    "NOTES.txt": "config",
    ".clang-tidy": "config",
    ".clang-format": "config",
}


def language(path):
    """c, python, shell, config, markdown, or None: data. Files without a suffix are known by their first line."""
    if path.name in NAMES:
        return NAMES[path.name]
    if path.suffix:
        return SUFFIXES.get(path.suffix)
    try:
        with (ROOT / path).open("rb") as file:
            first = file.readline(200)
    except OSError:
        return None
    if first.startswith(b"#!"):
        return "python" if b"python" in first else "shell" if re.search(rb"\b(ba)?sh\b", first) else None
    return None


def tracked(*patterns):
    """Files of the working tree that git knows or would add, as paths relative to the root."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    return [pathlib.Path(name) for name in sorted(set(out.split("\0"))) if name and (ROOT / name).is_file()]


def read(path):
    return (ROOT / path).read_text(errors="replace")


C_TOKEN = re.compile(
    r"""(?P<line>//(?:\\\n|[^\n])*)
    |(?P<block>/\*.*?(?:\*/|\Z))
    |R"(?P<mark>[^()\s]{0,16})\(.*?\)(?P=mark)"
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<go>`[^`]*`)
    |(?<![0-9A-Fa-f])'(?:\\.[^'\n]*|[^'\\\n])'""",
    re.S | re.X,
)


def c_segments(text):
    last = 0
    for match in C_TOKEN.finditer(text):
        yield "code", last, text[last : match.start()]
        whole = match.group()
        kind = "comment" if match.group("line") or match.group("block") else "code" if whole[0] == "'" else "string"
        yield kind, match.start(), whole
        last = match.end()
    yield "code", last, text[last:]


def python_segments(text):
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    last, begins = 0, True
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            if token.type == tokenize.STRING or (token.type == tokenize.COMMENT and not token.string.startswith("#!")):
                yield "code", last, text[last:begin]
                # A string that begins a statement is a docstring.
                yield "comment" if begins or token.type == tokenize.COMMENT else "string", begin, text[begin:end]
                last = end
            if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING):
                begins = True
            elif token.type not in (tokenize.NL, tokenize.COMMENT):
                begins = False
    except (tokenize.TokenError, IndentationError):
        pass  # the rest counts as code; ruff reports the error itself
    yield "code", last, text[last:]


def hash_segments(text):
    """Shell, CMake, YAML: a comment begins with # after a blank. The rest is code and text at once."""
    last = 0
    for match in re.finditer(r"(?m)(?:^|(?<=\s))#(?!!)[^\n]*", text):
        quotes = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if quotes.count('"') % 2 or quotes.count("'") % 2:
            continue
        yield "mixed", last, text[last : match.start()]
        yield "comment", match.start(), match.group()
        last = match.end()
    yield "mixed", last, text[last:]


READERS = {"c": c_segments, "python": python_segments, "shell": hash_segments, "config": hash_segments}


def segments(path):
    """(kind, offset, text), kind being comment, string, code, mixed or markdown; comments keep their marks."""
    text, kind = read(path), language(path)
    if kind == "markdown":
        return [("markdown", 0, text)]
    return [part for part in READERS[kind](text) if part[2]]


COMMENT_MARKS = re.compile(r"(?m)^[ \t]*(?:///?<?|/\*\*?|\*(?!/)|#+!?|\"\"\"|''')[ \t]?|[ \t]*\*/[ \t]*$|\"\"\"$|'''$")


def paragraphs(path, kinds=("comment",)):
    """(text, place) of each comment block or paragraph; `place(offset)` is the line of a character of the text.

    Comments on consecutive lines are one block, so that phrases and sentences may cross lines. White space is folded.
    """
    whole = read(path)
    if language(path) == "markdown":
        blocks = markdown_blocks(whole)
    else:
        blocks = comment_blocks(whole, [part for part in segments(path) if part[0] in kinds])
    for begin, text in blocks:
        yield fold(whole, begin, text)


def fold(whole, begin, text):
    """Without comment marks, white space folded; and the function from an offset in that to the line in the file."""
    text = COMMENT_MARKS.sub(lambda match: " " * len(match.group()), text)
    words, starts, sources, length = [], [], [], 0
    for match in re.finditer(r"\S+", text):
        words.append(match.group())
        starts.append(length)
        sources.append(begin + match.start())
        length += len(match.group()) + 1

    def place(offset):
        source = sources[max(0, bisect.bisect_right(starts, offset) - 1)] if sources else begin
        return whole.count("\n", 0, source) + 1

    return " ".join(words), place


def comment_blocks(whole, parts):
    begin = end = None
    for _, offset, text in parts:
        gap = whole[end:offset] if end is not None else None
        # A trailing comment and the one below it are two; an empty comment line parts paragraphs.
        own_line = not whole[whole.rfind("\n", 0, offset) + 1 : offset].strip()
        if gap is not None and gap.isspace() and gap.count("\n") <= 1 and own_line:
            end = offset + len(text)
            continue
        if begin is not None:
            yield from split_blank(whole, begin, end)
        begin, end = offset, offset + len(text)
    if begin is not None:
        yield from split_blank(whole, begin, end)


BLANK = re.compile(r"(?m)^[ \t]*(?://|\*|#)?[ \t]*\n|\n(?=[ \t]*(?://|\*|#)?[ \t]*(?:[-*]|\d+\.)[ \t])")


def split_blank(whole, begin, end):
    """Paragraphs and list items of one comment."""
    last = begin
    for match in BLANK.finditer(whole, begin, end):
        if whole[last : match.start()].strip():
            yield last, whole[last : match.start()]
        last = match.end()
    if whole[last:end].strip():
        yield last, whole[last:end]


def markdown_blocks(whole):
    """Paragraphs, list items, headings and table cells; blocks of code are left out."""
    prose = re.sub(
        r"(?ms)^([ \t]*)(```|~~~).*?^\1\2[ \t]*$|<!--.*?-->", lambda m: re.sub(r"[^\n]", " ", m.group()), whole
    )
    last, begin = 0, None
    for match in re.finditer(r"[^\n]*\n|[^\n]+\Z", prose):
        line = match.group()
        cell = line.lstrip().startswith("|")
        starts = not line.strip() or cell or re.match(r"\s*(?:[-*+]|\d+\.|#+|>)\s", line)
        if starts and begin is not None:
            yield begin, prose[begin:last]
            begin = None
        if cell:
            offset = match.start()
            for piece in re.split(r"(?<!\\)\|", line):
                if re.search(r"\w", piece):
                    yield offset, piece
                offset += len(piece) + 1
        elif line.strip() and begin is None:
            begin = match.start()
        if re.match(r"\s*#+\s", line) and begin is not None:
            yield begin, line
            begin = None
        last = match.end()
    if begin is not None:
        yield begin, prose[begin:last]


def arguments():
    """The program's arguments; with --help it prints the text at its head, and ends."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(sys.modules["__main__"].__doc__.strip())
        sys.exit(0)
    return sys.argv[1:]


if __name__ == "__main__":
    wanted = arguments()
    for name in tracked():
        if language(name) in wanted:
            print(name)
