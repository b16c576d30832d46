"""Duplicates of what copies loaded, and what ends them, under pressure: read_mostly_test.py BUILD"""
import os
import pathlib
import subprocess
import sys

build = pathlib.Path(sys.argv[1]).resolve()
MIB = 1 << 20


def run(driver="simgpu", **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "ULMS_"))}
    env["LD_LIBRARY_PATH"] = f"{build}/lib/{driver}:{build}/test/dnn/libraries"
    env["SIMGPU_PROFILE"] = "card-8g"
    env.update(more)
    done = subprocess.run([build / "test" / "dnn_read_mostly_program"], env=env, capture_output=True, text=True, timeout=120)
    if done.returncode != 0 or not done.stdout.endswith("done\n"):
        sys.exit(f"{more}: status {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return done.stdout, done.stderr


# Operands are fetched (SLUICE_HOST_ACCESS=0), so that each comes to the card.
hook = {"LD_PRELOAD": str(build / "lib" / "libsluice.so"), "SLUICE_MEMORY_FACTOR": "100", "SLUICE_HOST_ACCESS": "0",
        "SLUICE_GPU_MEMORY": str(512 * MIB)}
for what, settings in (("at launch", {"SLUICE_PREFETCH": "launch", "DUPLICATES": "1"}), ("with prediction", {"DUPLICATES": "1"}),
                       ("two cards", {"SIMGPU_PROFILE": "two-gpu", "DUPLICATES": "1"}), ("an older driver", {"driver": "simgpu-550", "DUPLICATES": "1"}),
                       ("switched off", {"SLUICE_READ_MOSTLY": "0"}), ("by faults", {"SLUICE_PREFETCH": "off"}),
                       ("it fits", {"SLUICE_GPU_MEMORY": str(2048 * MIB)})):
    out, said = run(**{**hook, **settings})
    plain, _ = run(**{key: settings[key] for key in settings.keys() & {"driver", "SIMGPU_PROFILE"}})
    print(what, said, sep="\n")
    if out != plain:
        sys.exit(f"{what}: it computes something else\n{plain}\n{out}")
