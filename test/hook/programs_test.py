#!/usr/bin/env python3
"""Programs under `sluice run` with the shipped engine, on the simulated GPU.

programs_test.py BUILD [NAME...]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
PROBES = BUILD / "test/hook/probes"
STUB = BUILD / "test/hook/driver/stub"
# The tests' own environment never leaks in.
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "SLUICE_", "SIMGPU_", "CUDA_"))}


def start(*program, build=BUILD, **env):
    return subprocess.Popen(
        [build / "bin/sluice", "run", "--gpu", "sim", "--memory", "2Gi", "--", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**PLAIN, **env},
    )


def run(*program, **how):
    p = start(*program, **how)
    try:
        out, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        p.kill()
        raise
    return p.returncode, out, err


def expect(got, status, out):
    assert got[0] == status and got[1] == out, f"expected {(status, out)}, got {got}"


def a_program_ends_with_its_last_thread():
    expect(run(PROBES / "early_exit"), 0, "cuInit 0\ngoodbye\n")


def a_thread_that_outlives_the_main_one_gets_signals():
    p = start(PROBES / "early_exit", "wait")
    assert p.stdout.readline() == "cuInit 0\n"
    try:
        p.wait(timeout=3)
        raise AssertionError("the program ended before its last thread")
    except subprocess.TimeoutExpired:
        pass
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=30)
    assert p.returncode == 128 + signal.SIGTERM, p.returncode


def the_driver_behind_a_stub_is_hooked():
    shell = f'LD_LIBRARY_PATH={STUB}:$LD_LIBRARY_PATH exec {PROBES}/total "$@"'
    expect(run("sh", "-c", shell, "total", "libcuda.so", "libcuda.so.1"), 0, "cuInit 34\n0 2048 MiB\n")
    driver = BUILD / "lib/simgpu/libcuda.so.1"
    expect(run(PROBES / "total", STUB / "libcuda.so", driver), 0, "cuInit 34\n0 2048 MiB\n")


def a_user_who_hides_all_gpus_sees_none():
    for value in ("", "-1"):
        expect(run(PROBES / "total", "libcuda.so.1", CUDA_VISIBLE_DEVICES=value), 0, "cuInit 100\nno driver\n")


def a_user_s_choice_of_gpus_holds():
    first, second = "GPU-511ce000-513d-4750-8a00-73696d000000", "GPU-511ce000-513d-4750-8a00-73696d000001"
    for value, card in (("0", 0), ("1", 1), ("1,0", 1), (" 1", 1), (first, 0), (second, 1), (f"{second},{first}", 1)):
        got = run(PROBES / "devices", SIMGPU_PROFILE="two-gpu", CUDA_VISIBLE_DEVICES=value)
        expect(got, 0, f"card {card}: 2048 MiB\n")


def copied_build(folder, *programs):
    """A build in a folder whose path the loader would split: at the blank, the colon and the semicolon."""
    build = pathlib.Path(folder) / "my tools: new; 2"
    (build / "bin").mkdir(parents=True)
    (build / "lib").mkdir()
    for name in ("sluice", *programs):
        shutil.copy(BUILD / "bin" / name, build / "bin")
    for name in ("libsluice.so", "libsluice_engine.so"):
        shutil.copy(BUILD / "lib" / name, build / "lib")
    shutil.copytree(BUILD / "lib/simgpu", build / "lib/simgpu")
    return build


def a_build_in_a_folder_with_a_blank_and_a_colon_is_hooked():
    with tempfile.TemporaryDirectory() as folder:
        build = copied_build(folder, "sluice-agent")
        expect(run(PROBES / "total", "libcuda.so.1", build=build), 0, "0 2048 MiB\n")


def a_build_in_a_folder_with_a_blank_and_a_colon_records_and_replays():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        build = copied_build(folder, "sluice-replay")
        shutil.copytree(BUILD / "lib/replay", build / "lib/replay")
        temporary = folder / "tmp"
        temporary.mkdir()
        source, made = folder / "source.sltrace", folder / "my recording: 1.sltrace"

        def call(program, *arguments, **env):
            env = {**PLAIN, "TMPDIR": str(temporary), **env}
            return subprocess.run([program, *arguments], env=env, capture_output=True, text=True, timeout=100)

        size = ["--layers", "1", "--width", "256", "--tokens", "64", "--vocabulary", "500", "--steps", "2"]
        done = call(BUILD / "bin/sluice-trace", "synth", "transformer", source, *size)
        assert done.returncode == 0, done
        record = ["record", "-o", made, "--gpu", "sim", "--", build / "bin/sluice-replay", source]
        done = call(build / "bin/sluice", *record)
        assert done.returncode == 0 and f"sluice: recorded {made}: " in done.stderr and made.exists(), done
        replay = ["replay", made, "--gpu", "sim", "--memory", "2Gi", "--log-level", "INFO", "--json"]
        done = call(build / "bin/sluice", *replay)
        assert done.returncode == 0 and "sluice: exit " in done.stderr and json.loads(done.stdout), done
        assert not list(temporary.iterdir()), "the links end with the command"
        for command in (record, replay):
            done = call(build / "bin/sluice", *command, TMPDIR="/proc")
            assert done.returncode == 1 and not done.stdout, done
            assert "cannot be preloaded from a path with a blank or colon" in done.stderr, done


TESTS = [
    a_program_ends_with_its_last_thread,
    a_thread_that_outlives_the_main_one_gets_signals,
    the_driver_behind_a_stub_is_hooked,
    a_user_who_hides_all_gpus_sees_none,
    a_user_s_choice_of_gpus_holds,
    a_build_in_a_folder_with_a_blank_and_a_colon_is_hooked,
    a_build_in_a_folder_with_a_blank_and_a_colon_records_and_replays,
]

if __name__ == "__main__":
    wanted = sys.argv[2:] or [t.__name__ for t in TESTS]
    for test in TESTS:
        if test.__name__ in wanted:
            test()
            print("ok", test.__name__, flush=True)
            wanted.remove(test.__name__)
    sys.exit(f"no such test: {wanted}" if wanted else 0)
