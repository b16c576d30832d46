#!/usr/bin/env python3
"""Writes the seeds of fuzz_reader into test/trace/corpus: python3 test/trace/make_corpus.py [SLUICE-TRACE]

The seed `packed` is the seed `records`, packed with `sluice-trace pack`: it is written where that program's path is
given.
"""

import pathlib
import random
import subprocess
import sys

MAGIC = b"SLTRACE\n"
META, ALLOC, FREE, REPORT, FUNCTION, LAUNCH, COPY, SET, STREAM_CREATE, STREAM_DESTROY = range(1, 11)
(
    EVENT_RECORD,
    STREAM_WAIT,
    EVENT_SYNC,
    STREAM_SYNC,
    DEVICE_SYNC,
    CAPTURE_BEGIN,
    CAPTURE_END,
    GRAPH_INSTANTIATE,
    GRAPH_LAUNCH,
) = range(11, 20)
STEP, DURATION, TRUTH, END, GUESSED, CHANGED, WORKING_SET = range(20, 27)
DT, BASE, MIB = 1000, 0x10000000, 1 << 20


def u(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def s(value):
    return u(value << 1 if value >= 0 else (-value << 1) - 1)


def text(value):
    return u(len(value)) + value.encode()


def record(kind, *fields):
    payload = b"".join(f if isinstance(f, bytes) else u(f) for f in fields)
    return bytes([kind]) + u(len(payload)) + payload


def launch(function, words, accesses=(), stream=0, flags=0):
    sets = b"".join(u(a) + u(n) + u(access | source << 2) for a, n, access, source in accesses)
    return record(LAUNCH, DT, function, stream, 2, 1, 1, 32, 1, 1, 0, flags, len(words), *words, len(accesses), sets)


def ranges(kind, ordinal, *pairs, access=()):
    return record(kind, ordinal, len(pairs), *[n for pair in pairs for n in pair], *access)


def trace(*records, flags=0, end=True):
    body = b"".join(records)
    done = record(END, DT, len(records)) if end else b""
    return MAGIC + (1).to_bytes(4, "little") + flags.to_bytes(4, "little") + body + done


def records():
    """Every record type at least once."""
    return trace(
        record(META, text("command"), text("seed")),
        record(FUNCTION, 0, text("gemm"), 2, 0, 8, 8, 4),
        record(FUNCTION, 1, text("k"), 0),
        record(ALLOC, DT, BASE, 4 * MIB, 0, 0, 0),
        record(ALLOC, DT, 2 * BASE, MIB, 2, 0, 0),
        record(ALLOC, DT, 3 * BASE, 64, 4, 0, 0),
        record(REPORT, DT, BASE, s(MIB), 0),
        record(REPORT, DT, BASE + MIB, s(65536), 0),
        record(STREAM_CREATE, DT, 7, 1),
        record(COPY, DT, 7, BASE, 0x7000, 4096, 2),
        record(SET, DT, 7, BASE, 4096, 1),
        record(STEP, DT, text("step 0")),
        launch(0, [BASE, 5], [(BASE, MIB, 1, 1)], stream=7),
        record(DURATION, 0, 5000),
        ranges(TRUTH, 0, (BASE, 65536), access=[3]),
        record(EVENT_RECORD, DT, 9, 7),
        record(STREAM_WAIT, DT, 0, 9),
        record(EVENT_SYNC, DT, 9),
        record(STREAM_SYNC, DT, 7),
        record(CAPTURE_BEGIN, DT, 7, 0),
        launch(1, [], stream=7, flags=2),
        record(COPY, DT, 7, BASE, 2 * BASE, 4096, 3),
        record(CAPTURE_END, DT, 7, 21),
        record(GRAPH_INSTANTIATE, DT, 21, 22),
        record(GRAPH_LAUNCH, DT, 22, 7, 2, 1, BASE, 4096, 1 | 5 << 2, 0),
        record(GRAPH_LAUNCH, DT, 99, 7),
        record(STEP, DT, text("step 1")),
        record(WORKING_SET, DT, 0, 4 * MIB, MIB),
        launch(0, [BASE + MIB, 5]),
        record(COPY, DT, 0, 0x7000, BASE, 64, 1 | 4),
        record(REPORT, DT, BASE, s(-MIB), 0),
        record(STREAM_DESTROY, DT, 7),
        record(DEVICE_SYNC, DT),
        record(FREE, DT, BASE, 0),
        record(FREE, DT, 2 * BASE, 7),
    )


def raw():
    """A raw recording: two undisturbed steps and a measured one."""
    out = [
        record(META, text("slow-from"), text("2")),
        record(FUNCTION, 0, text("k"), 2, 0, 8, 8, 8),
        record(ALLOC, DT, BASE, 16 * MIB, 0, 0, 0),
        record(REPORT, DT, BASE, s(MIB), 0),
    ]
    for step in range(3):
        y = BASE + (2 + 4 * step) * MIB
        out += [record(STEP, DT, text("step")), record(REPORT, DT, y, s(2 * MIB), 0), launch(0, [BASE + 128, y])]
        if step < 2:
            out += [record(DURATION, step, 700)]
        else:
            out += [
                ranges(TRUTH, 2, (BASE, 4096), (y + 8192, 4096)),
                ranges(GUESSED, 2, (BASE + 4096, 8192), (y, 8192)),
                ranges(CHANGED, 2, (y, 8192), (BASE, 512), access=[2, 3]),
            ]
        out += [record(REPORT, DT, y, s(-2 * MIB), 0), record(STREAM_SYNC, DT, 0)]
    return trace(*out)


def main():
    folder = pathlib.Path(__file__).parent / "corpus"
    folder.mkdir(exist_ok=True)
    synthetic = trace(
        record(FUNCTION, 0, text("k"), 1, 0, 8),
        record(ALLOC, DT, BASE, MIB, 0, 0, 0),
        record(STEP, DT, text("s")),
        launch(0, [BASE], [(BASE, MIB, 3, 0)]),
        record(STEP, DT, text("t")),
        launch(0, [BASE], [(BASE, MIB, 1, 0)]),
        flags=1,
    )
    seeds = {
        "records": records(),
        "raw": raw(),
        "synthetic": synthetic,
        "cut": records()[:200],
        "empty": trace(),
        "newer": trace(record(99, 1, 2, 3), record(DEVICE_SYNC, DT, 77)),
    }
    choices = random.Random(20260101)
    for i in range(8):
        seeds[f"built{i}"] = b"G" + choices.randbytes(200 * (i + 1))
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
    if len(sys.argv) > 1:
        subprocess.run([sys.argv[1], "pack", folder / "records", folder / "packed"], check=True)


if __name__ == "__main__":
    main()
