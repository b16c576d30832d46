"""The line that the hook logs at a process's exit for each GPU in use, as a dict.

Two forms are read, the sentence and logfmt:

    sluice: exit pid 729 GPU-1: budget 4.00 GiB, live 5.71 GiB (peak 5.71 GiB), plain 0.00 GiB, in 37.70 GiB, ...
    sluice: exit pid=729 gpu=GPU-1 budget_bytes=4294967296 fetched_bytes=40480067584 ...

Both give the keys of logfmt; bytes that a sentence gives in GiB are rounded as it rounds them.
"""

import re

GIB = 1 << 30
_LINE = re.compile(r"^.*\bsluice\b[^\n]*?\bexit (?=pid[ =]\d)(?P<rest>[^\n]*)$", re.MULTILINE)
_PAIR = re.compile(r'([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|\S*)')
_HEAD = re.compile(r"pid (?P<pid>\d+) (?P<gpu>\S+): ")
# A sentence's figures: key, what stands before the number, unit.
_FIGURES = [
    ("budget_bytes", r"budget", "GiB"),
    ("live_bytes", r"live", "GiB"),
    ("live_peak_bytes", r"peak", "GiB"),
    ("unmanaged_bytes", r"plain", "GiB"),
    ("fetched_bytes", r"\bin", "GiB"),
    ("evicted_bytes", r"\bout", "GiB"),
    ("saved_bytes", r"without copy", "GiB"),
    ("fault_bytes", r"faults", "GiB"),
    ("stall_seconds", r"stalls", "s"),
    ("factor", r"factor", ""),
    ("launches", r"\blaunches", ""),
    ("launches_over_budget", r"over budget", ""),
]
# Other names for a key.
_ALIASES = {
    "in_bytes": "fetched_bytes",
    "out_bytes": "evicted_bytes",
    "written_back_bytes": "evicted_bytes",
    "plain_bytes": "unmanaged_bytes",
    "peak_live_bytes": "live_peak_bytes",
}


def _value(text):
    text = text[1:-1].replace('\\"', '"') if text.startswith('"') else text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _sentence(rest):
    head = _HEAD.match(rest)
    if head is None:
        return None
    line = {"pid": int(head["pid"]), "gpu": head["gpu"]}
    for key, words, unit in _FIGURES:
        found = re.search(rf"{words} (\d+(?:\.\d+)?)" + (f" {unit}" if unit else ""), rest)
        if found:
            line[key] = int(float(found[1]) * GIB) if unit == "GiB" else _value(found[1])
    return line


def parse(text):
    """The exit lines in a program's stderr, in their order."""
    out = []
    for found in _LINE.finditer(text):
        rest = found["rest"]
        if rest.startswith("pid="):
            line = {key: _value(value) for key, value in _PAIR.findall(rest)}
            for alias, key in _ALIASES.items():
                if alias in line:
                    line.setdefault(key, line[alias])
        else:
            line = _sentence(rest)
        if line:
            out.append(line)
    return out


def attached(text):
    """Whether the hook worked in the program: it logged an exit line."""
    return bool(parse(text))


def total(lines, key):
    """The sum of a key over lines of several processes or GPUs; None without a line that has it."""
    values = [line[key] for line in lines if key in line]
    return sum(values) if values else None


def logs_driver_pressure(text):
    """Whether the hook logged that the driver evicts this process's memory, although it keeps within its budget."""
    return re.search(r"the driver (takes|evicts) memory of this process|driver_pressure", text) is not None
