"""Results that library calls overwrite whole, under pressure: overwrites_test.py BUILD"""
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
    done = subprocess.run([build / "test" / "dnn_overwrite_program"], env=env, capture_output=True, text=True, timeout=120)
    if done.returncode != 0 or not done.stdout.endswith("done\n"):
        sys.exit(f"{more}: status {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return done.stdout, done.stderr


plain, _ = run()
# Operands are fetched (SLUICE_HOST_ACCESS=0), so what came can be counted.
hook = {"LD_PRELOAD": str(build / "lib" / "libsluice.so"), "SLUICE_MEMORY_FACTOR": "100", "SLUICE_HOST_ACCESS": "0",
        "SLUICE_GPU_MEMORY": str(512 * MIB)}
# What comes for a call alone: nothing ahead of it.
counted = {"SLUICE_PREFETCH": "launch", "UNDER_PRESSURE": "1"}
for what, settings in (("renewed", {**counted, "RENEWS": "1"}), ("switched off", {**counted, "SLUICE_OVERWRITES": "0"}),
                       ("a driver without discard", {**counted, "driver": "simgpu-550"}), ("with prediction", {}),
                       ("with host access", {"SLUICE_HOST_ACCESS": "1"})):
    out, said = run(**{**hook, **settings})
    print(what, said, sep="\n")
    if out != plain:
        sys.exit(f"{what}: it computes something else\n{plain}\n{out}")
