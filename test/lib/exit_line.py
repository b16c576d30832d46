"""The line that the hook logs for each GPU in use when a process ends, as a dict.

    sluice: exit pid=729 gpu=GPU-1 budget_bytes=4294967296 live_bytes=0 fetched_bytes=40480067584 ...

The line that it logs every ten seconds is the same with "status" in place of "exit". Events are logged in the same
form: `sluice: DEBUG graph_choice graph=1f best=...`.
"""

import re

_PAIR = re.compile(r'([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|\S*)')


def _value(text):
    text = text[1:-1].replace('\\"', '"') if text.startswith('"') else text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse(text, event="exit"):
    """The lines of this event in a program's stderr, in their order."""
    found = re.findall(rf"^.*\bsluice: {event} (pid=\d[^\n]*)$", text, re.MULTILINE)
    return [{key: _value(value) for key, value in _PAIR.findall(pairs)} for pairs in found]


def events(text, name):
    """The events of this name in a program's stderr, in their order, as dicts of their keys."""
    found = re.findall(rf"^.*\bsluice: (?:WARN|INFO|DEBUG) {name} (\w+=[^\n]*)$", text, re.MULTILINE)
    return [{key: _value(value) for key, value in _PAIR.findall(pairs)} for pairs in found]


def logged(text, level, *names):
    """The lines of this level that hold all these names and are no events.

    Tests match no words of a sentence, only the names in it on which users act: settings, variables, driver functions,
    sizes and units.
    """
    lines = re.findall(rf"^sluice: {level} (?!\w+ \w+=).*$", text, re.MULTILINE)
    return [line for line in lines if all(name in line for name in names)]


def attached(text):
    """Whether the hook worked in the program: it logged an exit line."""
    return bool(parse(text))


def total(lines, key):
    """The sum of a key over lines of several processes or GPUs; None without a line that has it."""
    values = [line[key] for line in lines if key in line]
    return sum(values) if values else None
