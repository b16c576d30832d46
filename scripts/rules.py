"""The rules of the policy that have a constant of their own: rules.py [--list]

docs/design/rules.md has a table with a row a rule: its constants, its file, its reason. Each constant of hooklib/policy
and of the throttle is in a row, or among the sizes and units below the table, and each that is named there exists. The
page says how many rules there are; more are not accepted, so that a new one takes the place of another, or is derived
from the prices (hooklib/policy/cost/link_model.h). --list prints the constants by file.
"""

import collections
import pathlib
import re
import sys

import source_text

PAGE = pathlib.Path("docs/design/rules.md")
PLACES = ("hooklib/policy/", "hooklib/engine/execute/throttle.cc", "hooklib/engine/device/memory_factor.cc")
CONSTANT = re.compile(r"\bconstexpr\s+[\w:<>, ]+?\s+(k[A-Z]\w*)\s*(?:\[\w*\])?\s*[={]([^;]*);")
MORE = re.compile(r",\s*(k[A-Z]\w*)\s*[={]")  # of a declaration of several
ROW = re.compile(r"^\| [^|]+ \| [^|]*`k[A-Z][^|]* \| [^|]+ \| [^|]+ \|$", re.M)  # rule, constants, file, reason
LIMIT = re.compile(r"\*\*(\d+) rules\*\*")


def constants():
    """The constants by file."""
    found = collections.defaultdict(list)
    for path in source_text.tracked("*.h", "*.cc"):
        if path.as_posix().startswith(PLACES):
            code = "".join(part[2] for part in source_text.segments(path) if part[0] == "code")
            for match in CONSTANT.finditer(code):
                found[path.as_posix()] += [match[1], *MORE.findall("=" + match[2])]
    return found


def faults(page, found):
    rows = list(ROW.finditer(page))
    named = collections.Counter(re.findall(r"`(k[A-Z]\w*)`", page))
    known = {name for names in found.values() for name in names}
    for path, names in sorted(found.items()):
        yield from (f"{path}: {name} is in no row of {PAGE}" for name in names if name not in named)
    yield from (f"{PAGE}: {name} does not exist" for name in sorted(set(named) - known))
    limit = LIMIT.search(page)
    if not limit or int(limit[1]) != len(rows):
        yield f"{PAGE}: the table has {len(rows)} rules, the text says {limit[1] if limit else 'nothing'}"


def main(arguments):
    found = constants()
    if arguments == ["--list"]:
        for path, names in sorted(found.items()):
            print(f"{path}: {' '.join(names)}")
        return 0
    page = source_text.read(PAGE)
    wrong = list(faults(page, found))
    print("".join(line + "\n" for line in wrong), end="")
    count = sum(len(names) for names in found.values())
    print(f"rules: {len(ROW.findall(page))} with {count} constants, {len(wrong)} faults", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
