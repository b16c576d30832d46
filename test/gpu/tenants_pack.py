"""The pack of test/gpu/tenants: its programs and libraries, stripped, for a machine with a GPU."""

import pathlib
import subprocess
import sys


def pack(build, folder):
    """The programs of the rows and their libraries, without symbols."""
    build, folder = pathlib.Path(build), pathlib.Path(folder)
    files = [build / "bin" / name for name in ("sluice", "sluice-agent", "tenant")] + [
        build / "lib" / name for name in ("libsluice.so", "libsluice_engine.so")
    ]
    for program in files[:2]:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, path = (line.split() + ["", "", ""])[:3]
            if path.startswith("/") and not name.startswith(("libc.", "libm.", "ld-")):
                files.append(pathlib.Path(path))
    for file in files:
        to = folder / ("bin" if file.parent.name == "bin" else "lib") / file.name
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", to, file.resolve()], check=True)
    print(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) >> 20, "MiB in", folder, file=sys.stderr)
