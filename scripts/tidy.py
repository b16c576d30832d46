"""clang-tidy over the sources of a build folder: tidy.py CLANG_TIDY BUILD CACHE [FOLDER OR FILE...]

A clean result is remembered by the content of everything it depends on: tool, settings, compile command, the source, and the headers
of this repository that ninja saw it include. System headers are pinned by the Debian release and the wheels' hashes.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

SHARED = ("agent", "cli", "deviceplugin", "hooklib", "kube", "scheduler", "trace", "webhook", "test", "proto")


def dependencies(build):
    """Object file -> headers, from ninja's own log."""
    found, current = {}, None
    out = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        if line.startswith("    "):
            found[current].append(line.strip())
        elif ": #deps" in line:
            current = line.split(": #deps")[0]
            found[current] = []
    return found


def main(tidy, build, cache, *only):
    root = pathlib.Path.cwd().resolve()
    only = [(root / place).resolve() for place in only]
    build = str(pathlib.Path(build).resolve())
    cache = pathlib.Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([tidy, "--version"], capture_output=True, text=True, check=True).stdout
    settings = hashlib.sha256((version + "".join((root / d / ".clang-tidy").read_text() for d in ("", "test"))).encode())
    deps = dependencies(build)
    content = {}

    def digest(path):
        if path not in content:
            try:
                content[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
            except OSError:
                content[path] = b"missing"
        return content[path]

    jobs = []
    for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
        source = pathlib.Path(entry["file"]).resolve()
        if build in str(source) or not source.is_relative_to(root) or source.relative_to(root).parts[0] not in SHARED:
            continue
        if only and not any(source.is_relative_to(place) for place in only):
            continue
        key = settings.copy()
        # Neither the clone's place nor the build folder's is part of the content.
        key.update(entry["command"].replace(build, "BUILD").replace(str(root), "ROOT").encode())
        key.update(digest(str(source)))
        output = entry.get("output", "")
        if output.startswith(build):
            output = os.path.relpath(output, build)
        for header in sorted(deps.get(output, [])):
            header = os.path.normpath(os.path.join(build, header))
            if header.startswith(str(root)):
                key.update(os.path.relpath(header, root).replace(os.path.relpath(build, root), "BUILD").encode() + digest(header))
        jobs.append((source, cache / key.hexdigest()))
    if not jobs:
        print("error: no such source of this repository in the build folder", file=sys.stderr)
        return 1
    todo = [(source, mark) for source, mark in jobs if not mark.exists()]
    print(f"clang-tidy: {len(jobs)} files, {len(todo)} changed since their last clean run", file=sys.stderr)

    def run(job):
        source, mark = job
        out = subprocess.run([tidy, "-p", build, "--quiet", str(source)], capture_output=True, text=True)
        if out.returncode == 0:
            mark.touch()
        return source, out

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        for done, (source, out) in enumerate(pool.map(run, todo), 1):
            print(f"[{done}/{len(todo)}] {source.relative_to(root)}" + ("" if out.returncode == 0 else ": FAILED"), file=sys.stderr)
            if out.returncode != 0:
                bad += 1
                print(out.stdout + out.stderr, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
