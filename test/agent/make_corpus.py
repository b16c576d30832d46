#!/usr/bin/env python3
"""Writes the seeds of fuzz_frames into test/agent/corpus: python3 test/agent/make_corpus.py."""

import pathlib
import struct

MAGIC = 0x43494C53
UUID = b"GPU-a".ljust(48, b"\0")


def frame(kind, body=b"", major=1, minor=0, magic=MAGIC, session=0):
    return bytes([session]) + (struct.pack("<IBBHQ", magic, major, minor, kind, 1) + body).ljust(256, b"\0")


def hello(session=0, flags=0):
    return frame(
        1, struct.pack("<iIQ", 42, flags, 7) + b"0.1.0".ljust(32, b"\0") + b"python3 train.py", session=session
    )


def token(kind, id=0, used=0, burst=0, session=0):
    return frame(kind, UUID + struct.pack("<5QII", 0, 0, used, burst, id, 0, 0), session=session)


def page(session=0, live=0, resident=0, generation=0, launches=1, working=0):
    words = [
        generation,
        resident,
        resident,
        0,
        live,
        live,
        0,
        0,
        0,
        0,
        0,
        0,
        launches,
        launches,
        0,
        0,
        0,
        0,
        0,
        10**8,
        working,
    ]
    return bytes([8 | session]) + UUID + struct.pack("<21Q", *words).ljust(224, b"\0")


def passes(times10ms):
    return bytes([12, times10ms & ~1])


def close(session=0):
    return bytes([12 | session, 1])


G = 1 << 30
SEEDS = {
    "hello": hello(),
    "returning": hello(flags=1) + frame(11) + passes(20),
    "two_hellos": hello() + hello(),
    "budget_followed": hello() + page(live=2 * G, resident=2 * G, generation=2000) + passes(40) + passes(40) + close(),
    "lent_and_reclaimed": hello(0)
    + hello(1)
    + page(0, 7 * G, 7 * G, 9000, 5, 7 * G)
    + passes(60)
    + page(1, 6 * G, 0, 0, 9, 6 * G)
    + passes(60)
    + passes(2),
    "token": hello() + token(5) + passes(2) + token(8, 1, 10**6, 10**6) + close(),
    "token_lease": hello(0)
    + hello(1)
    + token(5)
    + token(5, session=1)
    + passes(200)
    + token(8, 1, 10**12, 10**12)
    + passes(200),
    "token_unknown_card": hello() + frame(5, b"GPU-none".ljust(96, b"\xff")),
    "notice": hello() + frame(9, struct.pack("<II", 3, 0) + b"limit reached \xff\n"),
    "other_major": frame(1, major=2),
    "newer_minor": frame(1, minor=9) + passes(2),
    "not_ours": frame(1, magic=0x12345678),
    "unknown_type": hello() + frame(77),
    "truncated": b"\x04\x10" + b"SLIC" + b"\0" * 12,
    "oversized": b"\x04\xff" + b"\xff" * 255,
    "empty": b"\x04\x00",
    "wild_page": hello() + b"\x08" + UUID + b"\xff" * 224 + passes(100),
}
folder = pathlib.Path(__file__).resolve().parent / "corpus"
folder.mkdir(exist_ok=True)
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
