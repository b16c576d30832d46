"""The size of the hook's headers and classes: structure.py [--list]

In hooklib/policy, hooklib/engine and hooklib/memory no header has more than 150 lines, and no class more than 25 public
functions: a header is split by responsibility, a class into parts that know their own state. A base class counts
without those that it derives from. Constructors, destructors and operators do not count, overloads count each.
A chunk has at most so many fields of its own and flags among them, which may only fall. The needs of one policy are in
that policy's own table, and the place of a chunk is in ChunkState.
--list prints the longest headers and the largest classes instead.
"""

import re
import sys

import source_text

FOLDERS = ("hooklib/policy/", "hooklib/engine/", "hooklib/memory/")
LINES = 150
FUNCTIONS = 25
CHUNK = "hooklib/memory/chunk.h"
FIELDS, FLAGS = 53, 12
CLASS = re.compile(
    r"\b(?P<kind>class|struct)\s+(?:SLUICE_\w+(?:\([^()]*\))?\s+|alignas\(\w+\)\s+)*(?P<name>\w+)(?:\s+final)?"
    r"(?:\s*:\s*[^;{}()]*)?\s*\{"
)
ACCESS = re.compile(r"\b(public|protected|private)\s*:(?!:)")
MACROS = re.compile(r"\b(?:SLUICE_\w+|alignas|noexcept|__attribute__)(?:\s*\((?:[^()]|\([^()]*\))*\))?")
NO_FUNCTION = re.compile(r"^\s*(?:using|friend|static_assert|typedef|enum)\b")


def code_of(path):
    """The source with its comments and strings blanked."""
    parts = source_text.segments(path)
    return "".join(part[2] if part[0] == "code" else re.sub(r"[^\n]", " ", part[2]) for part in parts)


def end_of(code, begin):
    """Behind the brace that closes the one before `begin`."""
    depth, at = 1, begin
    while depth and at < len(code):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        at += 1
    return at


def members(body):
    """The declarations of a class body, each without the blocks in it."""
    text, at = "", 0
    while at < len(body):
        char = body[at]
        if char == "{":
            at = end_of(body, at + 1)
            text += "{}"
            # A function's body ends its declaration; an initializer is followed by its own semicolon.
            if not re.match(r"\s*[;,]", body[at:]):
                text += ";"
            continue
        text += char
        at += 1
    return text


def declares_functions(declaration):
    """How many functions a declaration declares: several share one type in `int F(), G();`."""
    plain = re.sub(r"template\s*<(?:[^<>]|<[^<>]*>)*>", " ", MACROS.sub(" ", declaration))
    if NO_FUNCTION.search(plain) or re.search(r"\boperator\b", plain):
        return []
    while True:  # template arguments hold parentheses and commas
        shorter = re.sub(r"<[^<>()]*(?:\([^()]*\)[^<>()]*)*>", " ", plain)
        if shorter == plain:
            break
        plain = shorter
    head = plain.split("(", 1)[0]
    if "(" not in plain or "=" in head or not re.search(r"\w\s*$", head):
        return []
    depth, names, word = 0, [], ""
    for char in plain:
        if char == "(":
            if depth == 0 and re.search(r"(~?\w+)\s*$", word):
                names.append(re.search(r"(~?\w+)\s*$", word)[1])
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0:
            if char in "={":
                break
            word = "" if char == "," else word + char
            if char == ":" and names and not word.endswith("::"):  # a constructor's initializers
                break
    return names


def classes(code, prefix=""):
    """Yields each class with its public functions."""
    at = 0
    while match := CLASS.search(code, at):
        end = end_of(code, match.end())
        body, name = code[match.end() : end - 1], match["name"]
        public, access = [], "public" if match["kind"] == "struct" else "private"
        flat = members(body)
        pieces = ACCESS.split(flat)
        for index, piece in enumerate(pieces):
            if index % 2:
                access = piece
            elif access == "public":
                for declaration in piece.split(";"):
                    public += [n for n in declares_functions(declaration) if n not in (name, "~" + name)]
        yield prefix + name, public
        yield from classes(body, prefix + name + "::")
        at = end


def chunk_fields():
    """How many fields struct Chunk has, and how many of them are flags."""
    code = code_of(source_text.ROOT / CHUNK)
    body = code[re.search(r"\bstruct Chunk\b[^;{]*\{", code).end() :]
    declarations = [piece.strip() for piece in body[: body.index("};")].split(";")]
    fields = [piece for piece in declarations if piece and "(" not in piece]
    return len(fields), sum(piece.startswith("bool ") for piece in fields)


def headers():
    paths = source_text.tracked("*.h")
    return [path for path in paths if path.as_posix().startswith(FOLDERS)]


def main(arguments):
    sizes = {path: len(source_text.read(path).splitlines()) for path in headers()}
    counts = {}
    for path in sizes:
        for name, public in classes(code_of(path)):
            counts[(path, name)] = len(public)
    fields, flags = chunk_fields()
    too_many = fields > FIELDS or flags > FLAGS
    long = sorted((path for path in sizes if sizes[path] > LINES), key=lambda path: -sizes[path])
    large = sorted((key for key in counts if counts[key] > FUNCTIONS), key=lambda key: -counts[key])
    if arguments == ["--list"]:
        for path in sorted(sizes, key=lambda path: -sizes[path])[:12]:
            print(f"{sizes[path]:5} lines     {path}")
        for path, name in sorted(counts, key=lambda key: -counts[key])[:12]:
            print(f"{counts[(path, name)]:5} functions {path}: {name}")
        print(f"{fields:5} fields    {CHUNK}: {flags} of them flags")
    else:
        if too_many:
            print(f"{CHUNK}: {fields} fields, {flags} of them flags; at most {FIELDS} and {FLAGS} are accepted")
        for path in long:
            print(f"{path}: {sizes[path]} lines; a header has at most {LINES}")
        for path, name in large:
            print(f"{path}: {name} has {counts[(path, name)]} public functions; at most {FUNCTIONS} are accepted")
    print(
        f"structure: {len(sizes)} headers, {len(long)} too long; {len(counts)} classes, {len(large)} too large",
        file=sys.stderr,
    )
    return 1 if (long or large or too_many) and arguments != ["--list"] else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
