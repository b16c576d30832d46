#!/usr/bin/env python3
"""What test/gpu/tenants carries to a machine with a card runs there: tenants_test.py BUILD. The pack is made, needs nothing of this machine but
glibc, and one row runs as on a real card, in an environment of its own, with the simulated driver where a machine keeps NVIDIA's."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TENANTS = pathlib.Path(__file__).resolve().parent / "tenants"
GLIBC = ("linux-vdso.", "libc.", "libm.", "ld-", "/lib64/ld-", "libpthread.", "libdl.")


def main():
    build, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(tempfile.mkdtemp(prefix="sluice-pack-"))
    pack, driver = folder / "pack", folder / "driver"
    bare = {"PATH": os.environ["PATH"], "OUT": str(folder / "out")}
    try:
        subprocess.run([TENANTS, "--build", build, "--pack", pack], check=True)
        for program in (pack / "bin").iterdir():
            for line in subprocess.run(["ldd", program], env=bare, capture_output=True, text=True, check=True).stdout.splitlines():
                assert line.split()[0].startswith(GLIBC) or str(pack) in line, f"{program.name}: {line}"

        refused = subprocess.run([TENANTS, "--build", pack, "limit"], env=bare, capture_output=True, text=True)
        assert refused.returncode == 1 and refused.stderr.startswith("tenants: no NVIDIA driver here"), refused.stderr

        shutil.copytree(build / "lib" / "simgpu", driver)
        card = {"LD_LIBRARY_PATH": str(driver), "SIMGPU_STATE": str(folder / "state"), "SIMGPU_PACE": "1", "SIMGPU_MISUSE": "report",
                "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.run([TENANTS, "--build", pack, "--scale", "0.5", "limit"], env={**bare, **card}, capture_output=True, text=True)
        rows = json.loads((folder / "out" / "tenants.json").read_text())
        least, most = (float(x) for x in rows[0]["value"].split(" to "))
        # Whether the share is held to a percent is not asked on a machine that also compiles.
        assert len(rows) == 1 and 0.3 < least <= most < 0.6, run.stderr
        assert "FAILED" not in run.stderr and " rounds" in run.stderr, run.stderr
        # Half of 8 GiB and of the contexts of two, less that of the one which runs.
        assert "budget 4.25 GiB" in (folder / "out" / "tenants.log").read_text(), run.stderr
    finally:
        shutil.rmtree(folder)


main()
