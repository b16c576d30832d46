"""The commands that README.md and docs/*.md show."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = ["README.md", "CONTRIBUTING.md", *sorted(str(f.relative_to(ROOT)) for f in (ROOT / "docs").rglob("*.md"))]
# A line of a block, or what stands between backticks, is a command when it begins with one of these.
PROGRAM = re.compile(r"(make|helm|kubectl|docker|podman|buildah|ctr|sha256sum|sluice(-[a-z]+)?|(build|scripts|test)/[\w./-]+)(?= |$)")
SHELL = ("sh", "bash", "shell", "console")
# A file or a part that is named, and is no command by itself.
NAMED = re.compile(r"(sluice(-\w+)?|kubectl|helm|make|docker|podman|buildah|ctr|\S*\.(cc|h|py|json|yaml)|test/\w+|\S+/|\S*\*\S*)")


class Command:
    def __init__(self, where, line, text, block):
        self.where, self.line, self.block = where, line, block
        # What stands behind two blanks and a # is for the reader; the mark of what no test can run stands there, too.
        self.text, _, self.comment = (x.strip() for x in re.sub(r"^\$ ", "", text).partition("  #"))

    def __repr__(self):
        return f"{self.where}:{self.line}: {self.text}"


def commands_in(name, text):
    """All commands of one document, in order; those of a block labelled as shell are commands whatever they begin with."""
    found, fence, before = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*```(\w*)", line)
        if mark:
            fence = None if fence is not None else mark.group(1)
        elif fence is not None or (line.startswith("    ") and (before == "" or before.startswith("    "))):
            stripped = line.strip()
            if PROGRAM.match(stripped.removeprefix("$ ")) or (fence in SHELL and stripped and not stripped.startswith("#")):
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
