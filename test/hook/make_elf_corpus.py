#!/usr/bin/env python3
"""Writes the seeds of fuzz_elf, whose heading has the format: make_elf_corpus.py FOLDER

Objects as linkers write them: with DT_HASH, DT_GNU_HASH or both, with and without versions, relocated (glibc) and
not (musl)."""

import pathlib
import struct
import sys

NAMES = ["cuInit", "dlsym", "alpha", "beta_with_a_longer_name", "undefined", "old_version", "object", "absent"]
SYMBOLS = NAMES[:7]  # in this order in the symbol table; "absent" is not in it
FUNCTION, OBJECT, GLOBAL = 2, 1, 1
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM = 4, 5, 6, 0x6FFFFEF5, 0x6FFFFFF0


def sysv_hash(name):
    h = 0
    for c in name.encode():
        h = (h << 4) + c
        high = h & 0xF0000000
        if high:
            h ^= high >> 24
        h &= ~high & 0xFFFFFFFF
    return h


def gnu_hash(name):
    h = 5381
    for c in name.encode():
        h = (h * 33 + c) & 0xFFFFFFFF
    return h


def sysv_table(names, buckets):
    """nbucket, nchain, buckets, chains; symbol 0 is the null symbol."""
    heads, chains = [0] * buckets, [0] * (len(names) + 1)
    for i, name in enumerate(names, 1):
        bucket = sysv_hash(name) % buckets
        chains[i], heads[bucket] = heads[bucket], i
    return struct.pack(f"<{2 + buckets + len(chains)}I", buckets, len(chains), *heads, *chains)


def gnu_table(names, buckets):
    """Names must be sorted by bucket."""
    heads, chain = [0] * buckets, []
    for i, name in enumerate(names, 1):
        bucket = gnu_hash(name) % buckets
        heads[bucket] = heads[bucket] or i
        last = i == len(names) or gnu_hash(names[i]) % buckets != bucket
        chain.append((gnu_hash(name) & ~1) | last)
    return struct.pack(f"<4IQ{buckets + len(chain)}I", buckets, 1, 1, 6, (1 << 64) - 1, *heads, *chain)


def pad(data):
    return data + b"\0" * (-len(data) % 8)


def seed(sysv, gnu, versions, relocated, buckets=3):
    names = sorted(SYMBOLS, key=lambda n: gnu_hash(n) % buckets) if buckets else SYMBOLS
    strings, symbols = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for i, name in enumerate(names, 1):
        section = 0 if name == "undefined" else 7
        kind = OBJECT if name == "object" else FUNCTION
        symbols += struct.pack("<IBBHQQ", len(strings), GLOBAL << 4 | kind, 0, section, 16 * i, 8)
        strings += name.encode() + b"\0"
    tables = {DT_SYMTAB: symbols, DT_STRTAB: strings}
    if sysv:
        tables[DT_HASH] = sysv_table(names, buckets)
    if gnu:
        tables[DT_GNU_HASH] = gnu_table(names, buckets) if buckets else struct.pack("<4IQ", 0, 1, 1, 6, 0)
    if versions:
        tables[DT_VERSYM] = struct.pack(f"<{len(names) + 1}H", 0, *(0x8002 if n == "old_version" else 2 for n in names))
    image, dynamic = b"", b""
    for tag, table in tables.items():
        dynamic += struct.pack("<QQ", tag, len(image))
        image = pad(image + table)
    dynamic += struct.pack("<QQII", 0, 0, 3, 3)  # behind its end, so that a table cut off there does not begin with 0
    segments = [(0, 0, len(image)), (0, len(image), len(dynamic)), (1, len(image), len(dynamic))]
    found = NAMES[:4] + ([] if versions else ["old_version"])
    mask = sum(1 << i for i, name in enumerate(NAMES) if name in found and buckets)
    body = struct.pack("<BBB", mask, relocated, len(segments))
    body += b"".join(struct.pack("<BHH", *s) for s in segments) + image + dynamic
    checksum = 2166136261
    for byte in body:
        checksum = (checksum ^ byte) * 16777619 & 0xFFFFFFFF
    return struct.pack("<I", checksum) + body


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
SEEDS = {
    "gnu_glibc": seed(sysv=False, gnu=True, versions=True, relocated=True),
    "gnu_musl": seed(sysv=False, gnu=True, versions=False, relocated=False),
    "gnu_one_bucket": seed(sysv=False, gnu=True, versions=False, relocated=True, buckets=1),
    "gnu_no_bucket": seed(sysv=False, gnu=True, versions=False, relocated=True, buckets=0),
    "sysv_vdso": seed(sysv=True, gnu=False, versions=True, relocated=False),
    "sysv_glibc": seed(sysv=True, gnu=False, versions=False, relocated=True, buckets=2),
    "both": seed(sysv=True, gnu=True, versions=True, relocated=True),
    "no_table": seed(sysv=False, gnu=False, versions=False, relocated=False, buckets=0),
}
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
