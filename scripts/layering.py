"""The layers of the tree: which headers each folder must not include, and why.

Prints the file, line and rule of each violation. It also finds paths of one machine in the sources.
"""

import pathlib
import re
import sys

CUDA = r"cuda\w*\.h|cudnn\w*\.h|cublas\w*\.h|nvml\.h|cupti\w*\.h"
SOCKET = r"sys/socket\.h|sys/un\.h|netinet/.*|arpa/.*|netdb\.h"
GRPC = r"grpc.*|google/protobuf/.*|.*\.pb\.h"
PROGRAMS = "agent|cli|deviceplugin|hooklib|scheduler|webhook"
# Folder, headers that it must not include, why.
RULES = [
    (
        "hooklib/memory",
        rf"{CUDA}|dlfcn\.h|{SOCKET}|{GRPC}|hooklib/(policy|engine|compute)/.*",
        "state needs no hardware and takes no decision",
    ),
    (
        "hooklib/policy",
        rf"{CUDA}|dlfcn\.h|{SOCKET}|{GRPC}|hooklib/engine/.*",
        "the policy needs no hardware, no loader and no socket",
    ),
    (
        "hooklib/compute/time_slices.",
        rf"{CUDA}|dlfcn\.h|{SOCKET}|{GRPC}|hooklib/engine/.*",
        "time slices need no hardware",
    ),
    (
        "hooklib/libraries/extents",
        rf"{CUDA}|dlfcn\.h|{SOCKET}|hooklib/(memory|policy|engine|dispatch)/.*",
        "extents are pure: arguments in, byte ranges out",
    ),
    (
        "hooklib/libraries",
        r"hooklib/(memory|policy|engine)/.*",
        "the engine reads library_calls.h, not the other way round",
    ),
    (
        "hooklib",
        rf"{GRPC}|absl/.*|spdlog/.*|yaml-cpp/.*|nlohmann/.*|httplib\.h|prometheus/.*|iostream",
        "inside the hooked process there is nothing beyond glibc, and iostreams crash in a preloaded constructor",
    ),
    ("trace/recorder.", rf"{CUDA}|{GRPC}|zstd\.h|iostream", "the recorder runs inside the hooked process"),
    ("scheduler", rf"{CUDA}|dlfcn\.h", "placement is decided without a GPU"),
    ("webhook", rf"{CUDA}|dlfcn\.h|{GRPC}", "admission is a pure function of pod and settings"),
    ("proto", rf"(common|kube|trace|simgpu|{PROGRAMS})/.*", "every part includes proto, which includes none"),
    ("common", rf"(kube|trace|simgpu|{PROGRAMS})/.*", "every part includes common, which includes proto alone"),
    ("kube", rf"(trace|simgpu|{PROGRAMS})/.*", "the client of the API server knows none of its users"),
    (
        "hooklib",
        r"(agent|cli|deviceplugin|kube|scheduler|simgpu|webhook)/.*",
        "the hook speaks with the agent by proto",
    ),
]
# Shipped code must not depend on tests and experiments.
RULES += [
    (folder, r"(test|experiments)/.*", "shipped code includes no test")
    for folder in ("common", "kube", "trace", *PROGRAMS.split("|"))
]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
PATHS = re.compile(r"/work/|/root/")


def main():
    bad = 0
    count = 0
    root = pathlib.Path(__file__).resolve().parent.parent
    for top in (
        "agent",
        "cli",
        "common",
        "deviceplugin",
        "experiments",
        "hooklib",
        "kube",
        "proto",
        "scheduler",
        "simgpu",
        "test",
        "trace",
        "webhook",
    ):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cc", ".c", ".cu", ".def"):
                continue
            name = path.relative_to(root).as_posix()
            count += 1
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if PATHS.search(line):
                    bad += 1
                    print(f"{name}:{number}: a path of one machine: {line.strip()}", file=sys.stderr)
                match = INCLUDE.match(line)
                if not match:
                    continue
                for folder, forbidden, why in RULES:
                    inside = name.startswith(folder if folder.endswith(".") else folder + "/")
                    if inside and re.fullmatch(forbidden, re.sub(r"^(\.\./)+", "", match.group(1))):
                        bad += 1
                        print(f"{name}:{number}: includes {match.group(1)}; {folder}: {why}", file=sys.stderr)
    print(f"layering: {count} files, {bad} violations", file=sys.stderr)
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
