"""clang-tidy over a build folder: tidy.py tidy|analyze|naming|threads CLANG_TIDY BUILD CACHE [FOLDER OR FILE...]

tidy     every check of .clang-tidy but the static analyzer, which takes nine tenths of the time
analyze  the static analyzer
naming   the check of names alone
threads  clang's thread-safety analysis; before it, locks.py over the same folders

A clean result is cached. Its key is the content of all inputs: tool, settings, compile command, the source, and the
headers of this repository that ninja saw it include. System headers are pinned by the Debian release and the wheels.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import locks
import source_text

PRODUCT = (
    "agent",
    "cli",
    "common",
    "deviceplugin",
    "hooklib",
    "kube",
    "proto",
    "scheduler",
    "simgpu",
    "trace",
    "webhook",
)
MODES = {
    # libstdc++ 12's stable_sort calls a function that it calls deprecated itself; GCC, which builds, has no
    # -Wmissing-braces among C++'s -Wall.
    "tidy": (
        (*PRODUCT, "test", "experiments"),
        ["--checks=-clang-analyzer-*", "--extra-arg=-Wno-deprecated-declarations", "--extra-arg=-Wno-missing-braces"],
    ),
    # Of the checks of .clang-tidy these alone are left.
    "analyze": (
        (*PRODUCT, "test", "experiments"),
        ["--checks=-bugprone-*,-performance-*,-misc-*,-modernize-*,-readability-*,-google-*", "--extra-arg=-Wno-error"],
    ),
    "naming": (
        (*PRODUCT, "test", "experiments"),
        ["--checks=-*,readability-identifier-naming", "--extra-arg=-Wno-error"],
    ),
    # The order of locks (acquired_before) is only looked at with -beta.
    "threads": (
        PRODUCT,
        [
            "--allow-no-checks",  # diagnostics of the compiler are no checks
            "--checks=-*,clang-diagnostic-thread-safety*",
            "--extra-arg=-Wno-error",  # the other warnings are those of the build
            "--extra-arg=-Wthread-safety",
            "--extra-arg=-Wthread-safety-beta",
        ],
    ),
}


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


class Jobs:
    """The sources to analyse, each with the file that marks a clean result."""

    def __init__(self, tidy, build, cache, folders, options):
        self.root = pathlib.Path.cwd().resolve()
        self.build = str(pathlib.Path(build).resolve())
        self.cache, self.folders, self.content = cache, folders, {}
        version = subprocess.run([tidy, "--version"], capture_output=True, text=True, check=True).stdout
        settings = [path for path in source_text.tracked() if path.name == ".clang-tidy"]
        self.settings = hashlib.sha256("\0".join([version, *options, *map(source_text.read, settings)]).encode())
        self.headers = dependencies(self.build)

    def digest(self, path):
        if path not in self.content:
            try:
                self.content[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
            except OSError:
                self.content[path] = b"missing"
        return self.content[path]

    def key(self, entry, source):
        key = self.settings.copy()
        # Neither the clone's place nor the build folder's is part of the content.
        key.update(entry["command"].replace(self.build, "BUILD").replace(str(self.root), "ROOT").encode())
        key.update(self.digest(str(source)))
        output = entry.get("output", "")
        if output.startswith(self.build):
            output = os.path.relpath(output, self.build)
        for header in sorted(self.headers.get(output, [])):
            header = os.path.normpath(os.path.join(self.build, header))
            if header.startswith(str(self.root)):
                name = os.path.relpath(header, self.root).replace(os.path.relpath(self.build, self.root), "BUILD")
                key.update(name.encode() + self.digest(header))
        return key.hexdigest()

    def all(self, places):
        with open(os.path.join(self.build, "compile_commands.json")) as commands:
            entries = json.load(commands)
        seen = set()
        for entry in entries:
            source = pathlib.Path(entry["file"]).resolve()
            if self.build in str(source) or not source.is_relative_to(self.root):
                continue
            if source.relative_to(self.root).parts[0] not in self.folders:
                continue
            if places and not any(source.is_relative_to(place) for place in places):
                continue
            key = self.key(entry, source)
            if key not in seen:
                seen.add(key)
                yield source, self.cache / key


def main(mode, tidy, build, cache, *places):
    folders, options = MODES[mode]
    places = [(source_text.ROOT / place).resolve() for place in places]
    cache = pathlib.Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    jobs = Jobs(tidy, build, cache, folders, options)
    found = list(jobs.all(places))
    bad = locks.report(places) if mode == "threads" else 0
    if not found:
        print(f"error: {mode}: no such source of this repository in the build folder", file=sys.stderr)
        return 1
    todo = [(source, mark) for source, mark in found if not mark.exists()]
    print(f"{mode}: {len(found)} files, {len(todo)} changed since their last clean run", file=sys.stderr)

    def run(job):
        source, mark = job
        begin = time.monotonic()
        command = [tidy, "-p", jobs.build, "--quiet", "--warnings-as-errors=*", *options, str(source)]
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode == 0:
            mark.touch()
        return source, out, time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        for done, (source, out, seconds) in enumerate(pool.map(run, todo), 1):
            state = "" if out.returncode == 0 else ": FAILED"
            print(f"[{done}/{len(todo)}] {source.relative_to(jobs.root)} {seconds:.0f} s{state}", file=sys.stderr)
            if out.returncode != 0:
                bad += 1
                print(out.stdout + out.stderr, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[1] not in MODES:
        sys.exit(f"tidy: accepted: {'|'.join(MODES)} CLANG_TIDY BUILD CACHE [FOLDER OR FILE...]")
    sys.exit(main(*sys.argv[1:]))
