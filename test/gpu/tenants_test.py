#!/usr/bin/env python3
"""The pack of test/gpu/tenants runs on another machine: tenants_test.py BUILD.

The pack needs only glibc of this machine. One row runs as on a real GPU, in an environment of its own, with the
simulated driver in place of NVIDIA's.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import exit_line

TENANTS = pathlib.Path(__file__).resolve().parent / "tenants"
GLIBC = ("linux-vdso.", "libc.", "libm.", "ld-", "/lib64/ld-", "libpthread.", "libdl.")


def main():
    build, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(tempfile.mkdtemp(prefix="sluice-pack-"))
    pack, driver = folder / "pack", folder / "driver"
    bare = {"PATH": os.environ["PATH"], "OUT": str(folder / "out")}
    try:
        subprocess.run([TENANTS, "--build", build, "--pack", pack], check=True)
        for program in (pack / "bin").iterdir():
            for line in subprocess.run(
                ["ldd", program], env=bare, capture_output=True, text=True, check=True
            ).stdout.splitlines():
                assert line.split()[0].startswith(GLIBC) or str(pack) in line, f"{program.name}: {line}"

        refused = subprocess.run([TENANTS, "--build", pack, "limit"], env=bare, capture_output=True, text=True)
        assert refused.returncode == 1 and refused.stderr.startswith("tenants: no NVIDIA driver here"), refused.stderr

        shutil.copytree(build / "lib" / "simgpu", driver)
        card = {
            "LD_LIBRARY_PATH": str(driver),
            "SIMGPU_STATE": str(folder / "state"),
            "SIMGPU_PACE": "1",
            "SIMGPU_MISUSE": "report",
            "http_proxy": "http://127.0.0.1:9",
        }
        run = subprocess.run(
            [TENANTS, "--build", pack, "--scale", "0.5", "limit"], env={**bare, **card}, capture_output=True, text=True
        )
        rows = json.loads((folder / "out" / "tenants.json").read_text())
        low, high = (float(x) for x in rows[0]["value"].split(" to "))
        # The bounds are wide, since the machine may be loaded by compilers.
        assert len(rows) == 1 and 0.3 < low <= high < 0.6, run.stderr
        assert "FAILED" not in run.stderr and " rounds" in run.stderr, run.stderr
        # Half of 8 GiB and of the contexts of two tenants, less that of the running one.
        lines = exit_line.parse((folder / "out" / "tenants.log").read_text())
        assert [line["budget_bytes"] for line in lines] == [int(4.25 * (1 << 30))], run.stderr

        sim = [TENANTS, "--sim", "--build", build, "--scale", "0.5", "--card-gib", "4", "paged_later", "paged_block"]
        paged = subprocess.run(sim, env=bare, capture_output=True, text=True)
        values = [float(row["value"]) for row in json.loads((folder / "out" / "tenants.json").read_text())]
        assert len(values) == 6, paged.stderr
        for ratio, wait, demanded in (values[:3], values[3:]):
            # By turns of memory one of the two would have waited for all of the 16 s.
            assert ratio > 0.3 and wait < 9 and demanded < 0.9, paged.stderr
    finally:
        shutil.rmtree(folder)


main()
