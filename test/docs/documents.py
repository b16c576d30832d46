"""The commands that README.md and the pages of docs/ show."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# docs/lab holds dated records: their commands are those of their day.
FILES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(
        str(f.relative_to(ROOT)) for f in (ROOT / "docs").rglob("*.md") if not f.is_relative_to(ROOT / "docs" / "lab")
    ),
]
# A line of a block, or text between backticks, is a command if it begins with one of these.
PROGRAM = re.compile(
    r"(make|helm|kubectl|docker|podman|buildah|ctr|sha256sum|sluice(-[a-z]+)?|(build|scripts|test)/[\w./-]+)(?= |$)"
)
SHELL = ("sh", "bash", "shell", "console")
# Names of files and parts are no commands.
NAMED = re.compile(
    r"(sluice(-\w+)?|kubectl|helm|make|docker|podman|buildah|ctr|\S*\.(cc|h|py|json|yaml)|test/\w+|\S+/|\S*\*\S*)"
)


class Command:
    def __init__(self, where, line, text, block):
        self.where, self.line, self.block = where, line, block
        # Text behind two blanks and a # is for the reader. The marks of commands without a test are there too.
        self.text, _, self.comment = (x.strip() for x in re.sub(r"^\$ ", "", text).partition("  #"))

    def __repr__(self):
        return f"{self.where}:{self.line}: {self.text}"


def commands_in(name, text):
    """All commands of one document, in order. In a block labelled as shell every line is a command."""
    found, fence, before = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*```(\w*)", line)
        if mark:
            fence = None if fence is not None else mark.group(1)
        elif fence is not None or (line.startswith("    ") and (before == "" or before.startswith("    "))):
            stripped = line.strip()
            if PROGRAM.match(stripped.removeprefix("$ ")) or (
                fence in SHELL and stripped and not stripped.startswith("#")
            ):
                found.append(Command(name, number, stripped, True))
        else:
            spans = [s.replace("\\|", "|") for s in re.findall(r"(?<!`)`([^`]+)`(?!`)", line)]
            found += [Command(name, number, s, False) for s in spans if PROGRAM.match(s) and not NAMED.fullmatch(s)]
        before = line
    return found


def all_commands():
    return [c for f in FILES for c in commands_in(f, (ROOT / f).read_text())]


if __name__ == "__main__":
    for c in all_commands():
        print(c, "   [block]" if c.block else "")
