"""The subjects of commits: subjects.py FROM..TO | --message FILE

A subject has 1 to 72 characters. CI looks at the pushed commits, merges excepted; where FROM is unknown, as after the
first push of a branch, at TO alone. --message looks at the message of a commit that is being made.
"""

import pathlib
import subprocess
import sys

import source_text

LENGTH = 72


def git(*command):
    run = subprocess.run(["git", *command], cwd=source_text.ROOT, capture_output=True, check=False)
    return run.stdout.decode(errors="replace") if run.returncode == 0 else None


def subjects_of(commits):
    """(place, subject) of each commit of the range FROM..TO."""
    first, dots, last = commits.partition("..")
    if not dots or not last:
        sys.exit(f"subjects: '{commits}' is no range; accepted: FROM..TO, --message FILE")
    known = git("cat-file", "-e", f"{first}^{{commit}}") is not None
    # The subject is the first line, as for --message: `%s` would join the lines of a first paragraph.
    text = git("log", "--no-merges", "-z", "--format=%h %B", *([commits] if known else ["-1", last]))
    if text is None:
        sys.exit(f"subjects: git knows no commit '{last}'")
    for entry in filter(None, text.split("\0")):
        place, _, message = entry.partition(" ")
        yield place, message.partition("\n")[0]


def main(arguments):
    if arguments[:1] == ["--message"] and len(arguments) == 2:
        text = pathlib.Path(arguments[1]).read_text(errors="replace")
        found = [("the message", text.partition("\n")[0])]
    elif len(arguments) == 1:
        found = list(subjects_of(arguments[0]))
    else:
        sys.exit("subjects: accepted: FROM..TO, --message FILE")
    wrong = [(place, subject) for place, subject in found if not 1 <= len(subject) <= LENGTH]
    for place, subject in wrong:
        print(f"{place}: {len(subject)} characters; 1 to {LENGTH} are accepted: {subject}")
    print(f"subjects: {len(found)} commits, {len(wrong)} faults", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(source_text.arguments()))
