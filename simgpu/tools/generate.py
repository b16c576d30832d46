#!/usr/bin/env python3
"""From the toolkit's headers: every exported name, its version, stubs for names that are not simulated, export lists.

generate.py names  --header cuda.h --typedefs cudaTypedefs.h --out DIR
generate.py stubs  --names FILE --archive LIB.a --nm NM --prefix cu|nvml --error N --out DIR
"""

import argparse
import os
import re
import subprocess
import sys

# Exported by drivers 535 to 580, and not declared in cuda.h: cudaProfiler.h (13.0 has dropped cuProfilerInitialize) and
# the headers of OpenGL, EGL and VDPAU. Bindings that look every name up at start, as Rust's cudarc, need them.
UNDECLARED = [
    "cuProfilerInitialize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuGLCtxCreate",
    "cuGLCtxCreate_v2",
    "cuGLGetDevices",
    "cuGLGetDevices_v2",
    "cuGLInit",
    "cuGLMapBufferObject",
    "cuGLMapBufferObject_v2",
    "cuGLMapBufferObject_v2_ptds",
    "cuGLMapBufferObjectAsync",
    "cuGLMapBufferObjectAsync_v2",
    "cuGLMapBufferObjectAsync_v2_ptsz",
    "cuGLRegisterBufferObject",
    "cuGLSetBufferObjectMapFlags",
    "cuGLUnmapBufferObject",
    "cuGLUnmapBufferObjectAsync",
    "cuGLUnregisterBufferObject",
    "cuGraphicsGLRegisterBuffer",
    "cuGraphicsGLRegisterImage",
    "cuEGLStreamConsumerAcquireFrame",
    "cuEGLStreamConsumerConnect",
    "cuEGLStreamConsumerConnectWithFlags",
    "cuEGLStreamConsumerDisconnect",
    "cuEGLStreamConsumerReleaseFrame",
    "cuEGLStreamProducerConnect",
    "cuEGLStreamProducerDisconnect",
    "cuEGLStreamProducerPresentFrame",
    "cuEGLStreamProducerReturnFrame",
    "cuEventCreateFromEGLSync",
    "cuGraphicsEGLRegisterImage",
    "cuGraphicsResourceGetMappedEglFrame",
    "cuGraphicsVDPAURegisterOutputSurface",
    "cuGraphicsVDPAURegisterVideoSurface",
    "cuVDPAUCtxCreate",
    "cuVDPAUCtxCreate_v2",
    "cuVDPAUGetDevice",
]


def preprocess(compiler, header, defines):
    return subprocess.run(
        [compiler, "-E", "-P", "-x", "c++", "-I", os.path.dirname(header), *["-D" + d for d in defines], header],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def exported(compiler, header, prefix):
    found = set()
    for defines in ([], ["CUDA_API_PER_THREAD_DEFAULT_STREAM"], ["__CUDA_API_VERSION_INTERNAL"]):
        found |= set(re.findall(r"\b(" + prefix + r"[A-Z]\w+)\s*\(", preprocess(compiler, header, defines)))
    # Inline in the header, in no library.
    return found - {"cuGetProcAddress_v2_ptsz"}


def split(name):
    """cuMemsetD8_v2_ptds -> (cuMemsetD8, 2, True)"""
    m = re.fullmatch(r"(\w+?)(?:_v(\d+))?(_ptds|_ptsz)?", name)
    return m.group(1), int(m.group(2) or 1), m.group(3) is not None


def versions(compiler, typedefs, names):
    """Lines (base, version, per-thread, elf name), sorted."""
    text = "".join(
        preprocess(compiler, typedefs, d)
        for d in ([], ["CUDA_API_PER_THREAD_DEFAULT_STREAM"], ["__CUDA_API_VERSION_INTERNAL"])
    )
    known = {}
    for base, version, own in re.findall(r"PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\)", text):
        known.setdefault((base, own != ""), set()).add(int(version))
    variants = {}
    for name in names:
        base, number, own = split(name)
        variants.setdefault((base, own), []).append((number, name))
    lines, unpaired = [], []
    for key, elf in sorted(variants.items()):
        elf.sort()
        numbers = sorted(known.get(key, ()))
        # The typedefs begin with the oldest variant that still has a meaning: pair from the newest backwards.
        for i, (_, name) in enumerate(reversed(elf)):
            if i < len(numbers):
                lines.append((key[0], numbers[len(numbers) - 1 - i], int(key[1]), name))
            else:
                lines.append((key[0], 2000, int(key[1]), name))
                if i > 0 and not numbers:
                    unpaired.append(name)
        if len(numbers) > len(elf):
            unpaired.append(f"{key[0]}: versions {numbers}, names {[n for _, n in elf]}")
    return sorted(lines), unpaired


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["names", "stubs"])
    parser.add_argument("--header")
    parser.add_argument("--typedefs")
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--prefix", default="cu")
    parser.add_argument("--names")
    parser.add_argument("--archive")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--error", default="801")
    parser.add_argument("--extra", default="")
    parser.add_argument("--out", required=True)
    a = parser.parse_args()
    os.makedirs(a.out, exist_ok=True)
    if a.what == "names":
        names = exported(a.compiler, a.header, a.prefix)
        if a.prefix == "cu":
            names |= set(UNDECLARED)
            lines, unpaired = versions(a.compiler, a.typedefs, names)
            for u in unpaired:
                if ":" in u:
                    print("generate.py:", u, file=sys.stderr)
        else:
            lines = sorted((n, 2000, 0, n) for n in names)
        with open(os.path.join(a.out, a.prefix + "_names.inc"), "w") as out:
            for base, version, own, name in lines:
                out.write(f"NAME({base}, {version}, {own}, {name})\n")
        return
    lines = re.findall(r"NAME\((\w+), (\d+), (\d), (\w+)\)", open(a.names).read())
    symbols = subprocess.run(
        [a.nm, "--defined-only", "-g", a.archive], check=True, capture_output=True, text=True
    ).stdout
    defined = set(re.findall(r" T (\w+)$", symbols, re.M))
    missing = sorted({name for *_, name in lines} - defined)
    with open(os.path.join(a.out, a.prefix + "_stubs.c"), "w") as out:
        out.write("/* Generated: entry points that are not simulated return an error. */\n")
        for name in missing:
            out.write(f"int {name}(void) {{ return {a.error}; }}\n")
    with open(os.path.join(a.out, a.prefix + "_not_simulated.txt"), "w") as out:
        out.write("\n".join(missing) + "\n")
    for version in ("12020", "12040", "13000"):
        with open(os.path.join(a.out, f"{a.prefix}_{version}.map"), "w") as out:
            keep = sorted({name for _, v, _, name in lines if int(v) <= int(version)})
            extra = [e for e in a.extra.split(",") if e]
            out.write("{\n  global:\n" + "".join(f"    {n};\n" for n in keep + extra) + "  local: *;\n};\n")


if __name__ == "__main__":
    main()
