"""The parts that the pictures of docs/pictures show: picture_parts.py

scripts/pictures notes in docs/pictures/README.md the dashboard's panels, the columns of `sluice top` and the timeline's
lanes as it draws them. This check compares the notes with the dashboard, with cli/views.cc and with simgpu. So it fails
when a panel, a column or a lane has another name than in its picture: run scripts/pictures then.
"""

import json
import pathlib
import re
import sys

import source_text

PAGE = pathlib.Path("docs/pictures/README.md")
TOP = pathlib.Path("docs/pictures/top.svg")
DASHBOARD = pathlib.Path("charts/sluice/files/dashboard.json")
VIEWS = pathlib.Path("cli/views.cc")
SIMGPU = "simgpu/core/"
HEADING = "| picture | parts |\n|---|---|\n"
ROW = re.compile(r"^\| `([\w-]+\.(?:png|svg))` \| (.*) \|$", re.M)


def panels():
    return [panel["title"] for panel in json.loads(source_text.read(DASHBOARD))["panels"]]


def columns():
    """Of `sluice top`; a table's right-aligned columns begin with >."""
    text = source_text.read(VIEWS).partition("std::string TopText(")[2]
    table = re.search(r"Table \w+\(\{(.*?)\}\)", text, re.S)
    return [name.lstrip(">") for name in re.findall(r'"([^"]*)"', table[1])] if table else []


def lanes():
    """That simgpu's timeline may have, streams excepted."""
    found = set()
    for path in source_text.tracked("*.cc"):
        if path.as_posix().startswith(SIMGPU):
            for track in re.findall(r"timeline_\.Span\([^,]*,([^,]*),", source_text.read(path)):
                found.update(re.findall(r'"([^"]*)"', track))
    return found


def lanes_of(events):
    """The lanes of a timeline, without its card: `stream` for all streams."""
    names = [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    return sorted({re.sub(r"^card \d+ |(?<=stream) \d+$", "", name) for name in names})


def noted(page):
    """The parts of each picture by the page's table."""
    rows = page.partition(HEADING)[2].partition("\n\n")[0]
    return {name: parts.split("; ") for name, parts in ROW.findall(rows)}


def note(picture, parts):
    """Writes the parts of a picture that was drawn into the page's table."""
    page = source_text.read(PAGE)
    before, heading, rest = page.partition(HEADING)
    if not heading:
        sys.exit(f"{PAGE}: the table of the pictures' parts is missing: {HEADING.splitlines()[0]}")
    rows, _, after = rest.partition("\n\n")
    all_parts = noted(page) | {picture: parts}
    rows = "\n".join(f"| `{name}` | {'; '.join(all_parts[name])} |" for name in sorted(all_parts))
    (source_text.ROOT / PAGE).write_text(before + heading + rows + "\n" + ("\n" + after if after else ""))


def faults():
    parts = noted(source_text.read(PAGE))
    for name, wanted in (("dashboard.png", panels()), ("top.svg", columns())):
        if parts.get(name, []) != wanted:
            lacking = [part for part in wanted if part not in parts.get(name, [])]
            retired = [part for part in parts.get(name, []) if part not in wanted]
            yield f"{PAGE}: {name} lacks {lacking or 'nothing'} and has the retired {retired or 'nothing'}"
    header = next((line for line in source_text.read(TOP).splitlines() if ">CONTAINER " in line), "")
    if (drawn := re.sub(r"<[^>]*>", "", header).split()) != columns():
        yield f"{TOP}: it shows the columns {' '.join(drawn)}"
    for name, known in (("working-set.png", set(panels())), ("timeline.png", lanes() | {"stream"})):
        if not parts.get(name):
            yield f"{PAGE}: no parts of {name}"
        yield from (f"{PAGE}: {name} has the retired '{part}'" for part in parts.get(name, []) if part not in known)


def main(arguments):
    if arguments:
        sys.exit(f"picture_parts: '{arguments[0]}' is unknown; it takes no arguments")
    wrong = list(faults())
    print("".join(line + "\n" for line in wrong), end="")
    print(f"picture_parts: {len(noted(source_text.read(PAGE)))} pictures, {len(wrong)} faults", file=sys.stderr)
    if wrong:
        print("picture_parts: run scripts/pictures, which draws them anew", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
