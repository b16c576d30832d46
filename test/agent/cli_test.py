#!/usr/bin/env python3
"""The command line tools: `sluice run`, flags, messages.

cli_test.py BIN_DIR TEST_DIR [name...]
"""

import os
import shutil
import signal
import socket
import subprocess

from agent_rig import BIN, GIB, HERE, QUIET, UUID, run, test, wait_for


@test()
def sluice_run_end_to_end(a):
    a.needs_hook()
    out = a.cli(
        "run",
        "--memory",
        "2Gi",
        "--",
        "sh",
        "-c",
        "echo $SLUICE_GPU_MEMORY; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"),
    )
    assert out.stdout.split("\n")[0] == "2Gi" and any(
        line.startswith("budget") and line.split()[2] == str(2 * GIB) for line in out.stdout.split("\n")
    ), out
    shell = {"SLUICE_GPU_FRACTION": "0.25", "SLUICE_LOG_LEVEL": "INFO"}
    say = [
        "--",
        "sh",
        "-c",
        "echo $SLUICE_GPU_FRACTION,$SLUICE_GPU_MEMORY,$SLUICE_LOG_LEVEL; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"),
    ]
    for flags, output, budget in (
        ([], "0.25,,INFO", 2),
        (["--fraction", "0.5", "--log-level", "DEBUG"], "0.5,,DEBUG", 4),
        (["--memory", "1Gi"], ",1Gi,INFO", 1),
    ):
        out = a.cli("run", *flags, *say, env=shell).stdout.split("\n")
        assert out[0] == output and any(
            line.startswith("budget") and line.split()[2] == str(budget * GIB) for line in out
        ), (
            flags,
            out,
        )
    r = a.cli("run", "--", "true", check=False, env={"SLUICE_GPU_FRACTION": "1.5"})
    assert r.returncode == 2 and "SLUICE_GPU_FRACTION: '1.5' is not accepted" in r.stderr, r
    assert a.cli("run", "--fraction", "0.5", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert a.cli("run", "--fraction", "0.5", "--", "sh", "-c", "kill -9 $$", check=False).returncode == 137
    assert a.cli("run", "--", "/no/such/program", check=False).returncode == 127
    wait_for("allocations end with their programs", lambda: not a.status()["allocations"])
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--", "sleep", "60"], **QUIET)
    wait_for("its allocation", lambda: a.status()["allocations"])
    p.send_signal(signal.SIGTERM)
    assert p.wait() == 128 + signal.SIGTERM
    p = subprocess.Popen([BIN / "sluice", "run", "--run-dir", a.dir / "run", "--", "sleep", "60"], **QUIET)
    wait_for("its allocation", lambda: a.status()["allocations"])
    p.kill()
    p.wait()
    wait_for("a killed run's allocation ends too", lambda: not a.status()["allocations"])
    r = a.cli("run", "--gpu", "GPU-x", "--", "true", check=False)
    assert r.returncode == 125 and "'GPU-x' is not on this node" in r.stderr, r
    assert "no GPU has 100 of 100" not in r.stderr


@test()
def wrong_flags_and_files_are_refused(a):
    for args, rc, word in [
        (["--nope"], 2, "--nope"),
        (["--config", "/no/file"], 2, "/no/file: No such file or directory"),
        (["--run-dir", "/proc/no"], 1, "--run-dir: '/proc/no' cannot be used"),
        (["--run-dir", str(a.dir / "run")], 1, "another agent serves"),
    ]:
        r = subprocess.run([BIN / "sluice-agent", *args], capture_output=True, text=True, timeout=20)
        assert r.returncode == rc and word in r.stderr, (args, r)
    for text, word in [
        ("lendin: 1\n", ":1: lendin: this key is unknown; accepted: alloc_dir, "),
        ("a: [", "not YAML"),
        (
            "node: x\ncompute: {window_ms: 5}\n",
            ":2: compute.window_ms: '5' is not accepted; accepted: a whole number from 100",
        ),
        ("clients: [{limit: 0.2}]", "clients[0].id: missing"),
        ("node: a\nnode: b\n", "node: given twice"),
        ("clients: [{id: x, request: 0.5, limit: 0.2}]", "accepted: at least compute-request, 0.5"),
        (
            "metrics: {listen: '0.0.0.0:99999'}",
            ":1: metrics.listen: '0.0.0.0:99999' is not accepted; accepted: ADDRESS:PORT",
        ),
    ]:
        (a.dir / "bad.yaml").write_text(text)
        r = subprocess.run(
            [BIN / "sluice-agent", "--config", a.dir / "bad.yaml", "--check-config"], capture_output=True, text=True
        )
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, (text, r)
    for args, word in [
        (["--fraction", "1.5"], "--fraction: '1.5' is not accepted"),
        (["--memory", "x"], "--memory: 'x' is not accepted"),
        (["--backend", "mapped"], "--backend: 'mapped' is not accepted; accepted: managed"),
        (["--fraction", "0.5", "--memory", "1Gi"], "beside --fraction '0.5'"),
        (["--gpus", "0"], "--gpus: '0' is not accepted; accepted: a whole number from 1 to 16"),
        (["--gpus", "two"], "--gpus: 'two' is not accepted"),
        (["--gpus", "2", "--fraction", "3"], "'2' beside --fraction 3 is not accepted; accepted: --fraction up to 1"),
        (["--gpus", "2", "--gpu", UUID % 0], "beside --gpus 2 is not accepted; accepted: auto, sim"),
        (["--nope"], "--nope"),
        (["--fraction", "0.5", "sleep"], "'sleep' has no -- before it; accepted: sluice run [flags] -- CMD..."),
    ]:
        r = a.cli("run", *args, "--", "true", check=False)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, r


@test()
def a_port_in_use_gives_a_warning(a):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (a.dir / "port.yaml").write_text(f"metrics: {{listen: '127.0.0.1:{taken.getsockname()[1]}'}}\n")
        agent = subprocess.Popen(
            [
                BIN / "sluice-agent",
                "--config",
                a.dir / "port.yaml",
                "--run-dir",
                a.dir / "other",
                "--alloc-dir",
                a.dir / "other/alloc",
                "--quiet",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            told = " warn sluice-agent: metrics.listen: the server cannot listen at 127.0.0.1:"
            assert any(told in line for line in agent.stderr)
        finally:
            agent.kill()
            agent.wait()


@test()
def without_a_gpu_there_is_one_line_of_error(a):
    (a.dir / "libnvidia-ml.so.1").write_text("no library")  # tried before a real one
    r = subprocess.run(
        [BIN / "sluice", "run", "--own-agent", "--", "true"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LD_LIBRARY_PATH": str(a.dir)},
    )
    assert r.returncode == 125 and r.stderr.startswith("sluice: no usable GPU: NVML") and r.stderr.count("\n") == 1, r
    assert ("--gpu sim" in r.stderr) == (BIN.parent / "lib/simgpu/libnvidia-ml.so.1").exists(), r
    r = subprocess.run(
        [BIN / "sluice", "run", "--", "true"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SLUICE_RUN_DIR": str(a.dir / "none")},
    )
    assert (
        r.returncode == 125
        and "none/sluice.sock; start sluice-agent --run-dir" in r.stderr
        and r.stderr.count("\n") == 1
    ), r


@test()
def kubectl_errors_are_shown_without_its_log(a):
    kubectl = a.dir / "kubectl"
    kubectl.write_text(
        "#!/bin/sh\nfor i in 1 2; do\n"
        "  echo 'E1122 20:26:09.151259   27056 memcache.go:265] \"Unhandled Error\"' >&2\ndone\n"
        "echo 'The connection to the server x was refused' >&2\nexit 1\n"
    )
    kubectl.chmod(0o755)
    r = subprocess.run(
        [BIN / "kubectl-sluice", "top"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{a.dir}:{os.environ['PATH']}"},
    )
    assert r.returncode == 1 and r.stderr == "sluice: The connection to the server x was refused\n", r


@test()
def a_pods_name_is_checked_before_kubectl_is_asked(a):
    for words in (["set", "ns/p", "prefetch=off"], ["park", "pod/p"], ["wake", ""]):
        r = subprocess.run(
            [BIN / "kubectl-sluice", *words], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": ""}
        )
        assert r.returncode == 2 and "accepted: a pod's name; -n gives its namespace" in r.stderr, r


@test(gpus=2)
def two_gpus(a):
    a.needs_hook()
    out = a.cli(
        "run",
        "--fraction",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook"),
    )
    lines = [line.split() for line in out.stdout.split("\n") if line]
    assert sorted(line[1] for line in lines if line[0] == "budget") == [UUID % 0, UUID % 1], lines
    out = a.cli("run", "--fraction", "0.5", "--gpu", UUID % 1, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert out.stdout.strip() == UUID % 1
    r = a.cli("run", "--fraction", "3", "--", "true", check=False)
    assert r.returncode == 125 and r.stderr == "sluice: 3 GPUs are requested, this node has 2\n", r


@test()
def a_parent_that_ignores_sigchld_gets_the_status(a):
    a.needs_hook()

    def start(*program):
        return subprocess.run(
            [BIN / "sluice", "run", "--run-dir", a.dir / "run", "--", *program],
            capture_output=True,
            text=True,
            timeout=20,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )

    assert start("sh", "-c", "exit 7").returncode == 7
    ignored = int(start("grep", "SigIgn", "/proc/self/status").stdout.split()[1], 16)
    assert ignored & 1 << signal.SIGCHLD - 1, "the program has the parent's setting"


@test()
def a_script_without_an_interpreter_line_is_run_by_sh(a):
    a.needs_hook()
    script = a.dir / "script"
    script.write_text('echo "hi $1"\n')
    script.chmod(0o755)
    assert a.cli("run", "--", str(script), "you").stdout == "hi you\n"
    script.chmod(0o644)
    r = a.cli("run", "--", str(script), check=False)
    assert r.returncode == 126 and r.stderr == f"sluice: {script}: Permission denied\n", r


@test()
def a_program_name_need_not_be_utf8(a):
    a.needs_hook()
    program = os.fsencode(a.dir) + b"/caf\xe9"
    shutil.copy("/bin/echo", program)
    r = a.cli("run", "--", os.fsdecode(program), "hello")
    assert (r.stdout, r.stderr) == ("hello\n", ""), r


@test()
def a_build_in_a_folder_with_a_blank_or_colon_is_preloaded(a):
    a.needs_hook()
    for name in ("my tools", "my:tools"):
        build = a.dir / name
        (build / "lib").mkdir(parents=True)
        (build / "bin").mkdir()
        shutil.copy(BIN / "sluice", build / "bin")
        shutil.copy(BIN.parent / "lib/libsluice.so", build / "lib")

        def start(**env):
            return subprocess.run(
                [build / "bin/sluice", "run", "--run-dir", a.dir / "run", "--"]
                + ["sh", "-c", "echo $LD_PRELOAD; cat /proc/self/maps"],
                capture_output=True,
                text=True,
                timeout=20,
                env={**os.environ, "TMPDIR": str(a.dir), **env},
            )

        r = start()
        preloaded, maps = r.stdout.split("\n", 1)
        assert r.returncode == 0 and not r.stderr and f"{build}/lib/libsluice.so" in maps, r
        assert not os.path.exists(preloaded), "its link ends with the run"
        r = start(TMPDIR="/proc")
        assert r.returncode == 125 and r.stdout == "", r
        assert "libsluice.so' cannot be preloaded from a path with a blank or colon" in r.stderr, r


@test()
def doctor_names_functions_newer_than_the_hook(a):
    def findings():
        lines = a.cli("doctor", check=False).stdout.split("\n")
        return [
            (line, lines[i + 1])
            for i, line in enumerate(lines)
            if "newer than its" in line or "newer than their" in line
        ]

    old, new = a.hook(a.allocate("old", 30)), a.hook(a.allocate("new", 30))
    second = a.hook(a.dir / "alloc/new/agent.sock")
    for hook in (old, new, second):
        hook.expect("budget")
    assert not findings(), "no hook has met such a function"
    new.command("newer 1")
    wait_for("the finding", findings)
    ((what, fix),) = findings()
    begin = "warn  allocation new: 1 process uses 1 driver function newer than its sluice 0.0.0-fake: "
    assert what.startswith(begin), what
    assert (
        f": pid {new.p.pid} (" in what
        and "fake_hook" in what
        and str(second.p.pid) not in what
        and "outside the budget" in what
    ), what
    assert fix.startswith("      fix: ") and "restart" in fix and "older CUDA" in fix, fix
    second.command("newer 3")
    wait_for("both processes", lambda: "2 processes use up to 3 driver functions" in findings()[0][0])
    assert len(findings()) == 1 and str(second.p.pid) in findings()[0][0], findings()
    new.end()
    second.end()
    wait_for("nothing to find of processes that ended", lambda: not findings())


@test(env={"FAKE_NVML_CGROUP_BYTES": str(4 << 30)})
def doctor_names_a_limit_of_the_agents_own_cgroup(a):
    lines = a.cli("doctor", check=False).stdout.split("\n")
    at = [i for i, line in enumerate(lines) if "cgroup" in line and line.startswith("warn")]
    assert len(at) == 1, lines
    assert lines[at[0]] == f"warn  GPU {UUID % 0}: the driver limits the agent's cgroup to 4.0 GiB of 8.0 GiB", lines
    assert lines[at[0] + 1].startswith("      fix: remove the limit of the agent's pod"), lines


@test(gpus=2)
def a_fraction_of_each_of_several_gpus(a):
    a.needs_hook()
    show = ["--", "sh", "-c", "exec %s $SLUICE_SOCKET" % (HERE / "fake_hook")]
    lines = a.cli("run", "--gpus", "2", "--fraction", "0.3", *show).stdout.split("\n")
    budgets = [line.split() for line in lines if line.startswith("budget")]
    assert sorted(b[1] for b in budgets) == [UUID % 0, UUID % 1], lines
    hold = subprocess.Popen(
        [
            BIN / "sluice",
            "run",
            "--run-dir",
            a.dir / "run",
            "--fraction",
            "0.8",
            "--gpu",
            UUID % 0,
            "--",
            "sleep",
            "1000",
        ]
    )
    try:
        wait_for("the holder", lambda: a.status()["allocations"])
        # All or none: the other GPU alone has the units.
        r = a.cli("run", "--gpus", "2", "--fraction", "0.3", "--", "true", check=False)
        assert r.returncode == 125 and "fewer than 2 GPUs have 30 of 100 units left" in r.stderr, r
        assert len(a.status()["allocations"]) == 1
        lines = a.cli("run", "--gpus", "2", "--fraction", "0.2", *show).stdout
        assert lines.count("budget") == 2, lines
    finally:
        hold.terminate()  # passed on to its program
        hold.wait()


@test(gpus=2)
def the_users_visible_devices_hold(a):
    a.needs_hook()

    def visible(value, *flags, check=True):
        show = ["--", "sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}; exec %s $SLUICE_SOCKET" % (HERE / "fake_hook")]
        return a.cli("run", *flags, *show, env={"CUDA_VISIBLE_DEVICES": value}, check=check)

    for value, flags, seen, budgets in (
        ("1", [], UUID % 1, [1]),
        (" 1 , 0", [], UUID % 1, [1]),
        ("0,-1,1", [], UUID % 0, [0]),
        (UUID % 1, [], UUID % 1, [1]),
        ("1,0", ["--gpu", UUID % 0], UUID % 0, [0]),
        ("1,0", ["--fraction", "2"], "1,0", [1, 0]),
        ("1,0", ["--fraction", "0.3", "--gpus", "2"], "1,0", [1, 0]),
        ("", [], "", None),
        ("-1", [], "-1", None),
    ):
        lines = visible(value, *flags).stdout.split("\n")
        assert lines[0] == seen, (value, lines)
        used = [line.split()[1] for line in lines if line.startswith("budget")]
        assert budgets is None or sorted(used) == sorted(UUID % i for i in budgets), (value, lines)
    for value, flags, word in (
        ("2", [], "CUDA_VISIBLE_DEVICES: '2' is not accepted; accepted: different GPUs of 0 to 1 or of GPU-"),
        ("1,1", [], "'1,1' is not accepted"),
        ("GPU-00", [], "'GPU-00' is not accepted"),
        ("MIG-1", [], "'MIG-1' is not accepted"),
        ("1", ["--gpu", UUID % 0], f"CUDA_VISIBLE_DEVICES='1' beside --gpu '{UUID % 0}' is not accepted; accepted: "),
        ("1", ["--fraction", "2"], "CUDA_VISIBLE_DEVICES='1' beside --fraction 2 is not accepted; accepted: "),
        ("1", ["--gpus", "2"], "'1' beside --gpus 2 is not accepted; accepted: --gpus up to 1"),
    ):
        r = visible(value, *flags, check=False)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1 and not r.stdout, r


if __name__ == "__main__":
    run()
