#!/usr/bin/env python3
"""Without a GPU: the logic of test/gpu/serving, and its rows on the simulated one: serving_test.py BUILD."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
SCRATCH = tempfile.TemporaryDirectory(prefix="sluice-serving-test-")
os.environ["OUT"] = SCRATCH.name  # before shared_gpu reads it
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import guard  # noqa: E402
import serving_rows as rows  # noqa: E402
import shared_gpu  # noqa: E402

GIB = 1 << 30
guard.settle = lambda nvml: 0


def load(name):
    loader = importlib.machinery.SourceFileLoader(f"gpu_{name}", str(HERE / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(f"gpu_{name}", loader))
    loader.exec_module(module)
    return module


serving = load("serving")


def answer(at_once, digests, tokens=100, first=(5.0,), differing=()):
    return {
        "at_once": at_once,
        "seconds": 2.0,
        "tokens": tokens,
        "first_ms": list(first),
        "between_ms": 1.0,
        "digests": digests,
        "differing": list(differing),
    }


def figures_of_a_level_are_sums_and_percentiles():
    one = rows.summary([answer(4, {}, 100, [1, 2, 3, 4]), answer(4, {}, 300, [50])])
    assert one["sum"] == 200 and one["each"] == [50, 150], one
    assert one["first_p50_ms"] == 3 and one["first_p99_ms"] == 50, one
    silent = rows.summary([answer(1, {}, 0, [])])
    assert silent["sum"] == 0 and silent["first_p50_ms"] is None, silent


def goals_compare_figures_of_the_same_level():
    measured = {"dedicated": {2: [{"sum": 100}], 8: [{"sum": 100}]}, "two": {2: [{"sum": 63.6}], 8: [{"sum": 67.9}]}}
    measured["two-over"] = {2: [{"sum": 57.3}], 32: [{"sum": 1}]}
    found = {(name.split(",")[0], name): met for name, _, _, met in rows.goals(measured)}
    assert sorted(met for _, met in found.items()) == [False, True, True], found
    assert not rows.goals({"dedicated": {2: [{"sum": 1}]}}), "no row without both"
    rounds = {
        "two": {8: [{"sum": 100}, {"sum": 160}, {"sum": 90}]},
        "two-over": {8: [{"sum": s} for s in (50, 95, 99)]},
    }
    assert [(part, met) for _, _, part, met in rows.goals(rounds)] == [(0.95, True)], "medians of the rounds"
    assert rows.wake_goal_ms(4e9, 10) == 160


def answers_that_differ_fail_whichever_server_ran_first():
    values, early, late, alone = rows.Values(), {}, {}, {}
    values.add(early, [answer(2, {"0": "a", "1": "b"})], True, True)
    assert early["failed"] and early["values"] == "none to compare with", early
    values.add({}, [answer(2, {"0": "a", "1": "b"})], False, True)
    assert not early["failed"] and early["values"] == "2 equal", early
    values.add(late, [answer(2, {"0": "a", "1": "x"})], True, True)
    assert late["failed"] and late["values"] == "1 of 2 differ", late
    values.add(alone, [answer(16, {"0": "a"})], True, True)
    assert alone["failed"], "another batch's answers are no reference"
    # An answer that differs from the same server's own is one that differs.
    values.add(late, [answer(2, {"0": "a"}, differing=["0"])], True, True)
    assert late["failed"], late
    values.add(late, [answer(2, {"0": "y"})], True, False)
    assert not late["failed"] and "vary" in late["values"], "an engine whose batches vary is not judged by bits"


def answers_that_differ_without_the_hook_are_no_reference():
    values, hooked = rows.Values(), {}
    values.add({}, [answer(2, {"0": "a", "1": "b"}, differing=["1"])], False, True)
    values.add(hooked, [answer(2, {"0": "a", "1": "c"})], True, True)
    assert hooked["values"] == "1 equal", hooked
    values.add({}, [answer(4, {"0": "z"})], False, True)
    assert values.by_batch() == (1, 0), values.by_batch()


def managed_memory_of_each_configuration_fits_the_guards_quarter():
    for card_gib in (79.2, 139):
        quarter = min(int(card_gib * GIB) // 4, guard.MAX_MANAGED)
        for c in rows.CONFIGS.values():
            weights = 3 * GIB  # of the larger of the two engines' models
            live_mib = c.live_mib(c.card_gib)
            each = live_mib << 20 if live_mib else weights + (c.cache_mib << 20)
            assert each + GIB / 2 <= quarter // c.servers, (card_gib, c.name, each / GIB)


class Card:
    """A GPU of 80 GiB, and `sluice` that only says its limit."""

    def __init__(self, folder):
        self.handles = [0]
        self.folder = pathlib.Path(folder)
        (self.folder / "bin").mkdir()
        tool = self.folder / "bin" / "sluice"
        tool.write_text('#!/bin/sh\necho "LIMIT $SLUICE_MANAGED_LIMIT"\n')
        tool.chmod(0o755)

    def memory(self, index=0):
        return types.SimpleNamespace(free=80 * GIB, used=0)

    def shared(self, at_once):
        card = shared_gpu.SharedGpu.__new__(shared_gpu.SharedGpu)
        card.o = types.SimpleNamespace(sim=False)
        card.allowance, card.at_once, card.build, card.dir = guard.Allowance(self), at_once, self.folder, self.folder
        card.env, card.gpu, card.running, card.shares = dict(os.environ), [], [], {}
        return card


def each_server_has_its_part_of_the_guards_limit():
    with tempfile.TemporaryDirectory() as folder:
        card = Card(folder).shared(2)
        servers = [card.start_program(["true"], ["--fraction", "0.50"], 9 * GIB, 20) for _ in range(2)]
        assert [s.communicate()[0] for s in servers] == [f"LIMIT {10 * GIB}\n"] * 2
        for needs in (9 * GIB, 11 * GIB):  # no third one, and none that needs more
            try:
                (card if needs == 9 * GIB else Card(tempfile.mkdtemp(dir=folder)).shared(2)).start_program(
                    ["true"], [], needs, 20
                )
                raise AssertionError(f"{needs} was not refused")
            except guard.Refused:
                pass


def server(script):
    errors = pathlib.Path(SCRATCH.name) / "errors"
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(errors, "w"), text=True
    )
    return serving.Server(process, errors)


def error_of(call):
    try:
        call()
        return ""
    except RuntimeError as error:
        return str(error)


def a_server_that_dies_or_hangs_is_named_with_its_last_words():
    dies = server("echo loading; echo 'out of memory' >&2; exit 3")
    assert error_of(lambda: dies.answer("READY", 10)) == "a server ended, status 3: out of memory"
    hangs = server("echo 'still loading' >&2; exec sleep 30")
    assert error_of(lambda: hangs.answer("READY", 1)) == "no READY within 1 s: still loading"
    hangs.process.kill()
    chatty = server('echo "a library\'s line"; echo \'READY {"pid": 7}\'; cat > /dev/null')
    assert chatty.answer("READY", 10) == {"pid": 7}
    chatty.quit()
    assert chatty.process.poll() == 0


FAKE_LLAMA = """#!/usr/bin/env python3
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200); self.end_headers()
        held = asked["prompt"][0] % 2  # an unfinished letter: made, not sent
        for i in range(asked["n_predict"] - held):
            said = {"content": "x", "tokens": [asked["prompt"][i % 8]], "stop": False}
            self.wfile.write(b"data: " + json.dumps(said).encode() + bytes([10, 10])); self.wfile.flush()
        made = asked["n_predict"] - ("FAKE_SHORT" in os.environ)
        last = {"content": "", "tokens": [], "stop": True, "tokens_predicted": made}
        self.wfile.write(b"data: " + json.dumps(last).encode() + bytes([10, 10]))
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def llama_server_is_asked_by_http():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "bin").mkdir()
        (path / "model.gguf").write_bytes(b"GGUF")
        (path / "bin" / "llama-server").write_text(FAKE_LLAMA)
        (path / "bin" / "llama-server").chmod(0o755)
        env = {**os.environ, "SERVING_LLAMA": folder, "PYTHONPATH": str(HERE / "workloads"), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, HERE / "workloads" / "serving.py", "--engine", "llama", "--batches", "4"]
        command += ["--prompt", "16", "--output", "5", "--cache-mib", "64"]
        orders = [{"at_once": 4, "seconds": 0.5, "begin": time.monotonic()}, {"one": True}]
        done = subprocess.run(
            [str(c) for c in command],
            env=env,
            input="".join(json.dumps(order) + "\n" for order in orders),
            capture_output=True,
            text=True,
            timeout=60,
        )
        output = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert done.returncode == 0 and list(output) == ["READY", "LEVEL", "ONE"], done
        level, one = json.loads(output["LEVEL"]), json.loads(output["ONE"])
        assert level["tokens"] > 0 and level["digests"] and not level["differing"], level
        assert one["digest"] == json.loads(output["READY"])["alone"]["digest"], "the same prompt again"
        short = subprocess.run(
            [str(c) for c in command],
            env={**env, "FAKE_SHORT": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,  # its pipes end with the server, so that one that stayed would be noticed
        )
        assert short.returncode == 1 and "4 tokens of 5" in short.stderr, short
        small = subprocess.run(
            [str(c) for c in [*command, "--output", "9999"]], env=env, capture_output=True, text=True
        )
        assert small.returncode == 1 and "are needed" in small.stderr, small


def the_packed_source_is_the_input_of_the_build():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        kept = ("CMakeLists.txt", "ggml/src/ggml.c", "ggml/src/ggml-cuda/mmq.cu", "tools/server/server.cpp")
        for name in (*kept, "models/large.gguf", "ggml/src/ggml-vulkan/shader.comp", "docs/readme.md"):
            file = path / "llama_cpp_python-1" / "vendor" / "llama.cpp" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
        with tarfile.open(path / "sdist.tar.gz", "w:gz") as archive:
            archive.add(path / "llama_cpp_python-1", "llama_cpp_python-1")
        with tarfile.open(path / "other.tar.gz", "w:gz") as archive:
            archive.add(path / "llama_cpp_python-1" / "vendor" / "llama.cpp" / "docs", "other-1")
        command = [HERE / "llama_build", "--pack", path / "made"]
        subprocess.run([*command, path / "sdist.tar.gz"], check=True)
        with tarfile.open(path / "made" / "llama.tar.xz") as archive:
            assert sorted(archive.getnames()) == sorted(kept), archive.getnames()
        refused = subprocess.run([*command, path / "other.tar.gz"], capture_output=True, text=True)
        assert refused.returncode == 1 and "holds no vendor/llama.cpp" in refused.stderr, refused
        missing = subprocess.run([HERE / "llama_build", path], capture_output=True, text=True)
        assert missing.returncode == 1 and "make it with --pack" in missing.stderr, missing


def run(build, *words):
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        done = subprocess.run(
            [HERE / "serving", "--build", build, *words],
            env={**os.environ, "OUT": folder},
            capture_output=True,
            text=True,
            timeout=240,
        )
        out = pathlib.Path(folder)
        files = {name: (out / name).read_text() for name in ("serving.json", "serving.md", "serving.log")
                 if (out / name).exists()}  # fmt: skip
        return done, files


# Short answers: many begin and end in half a second, also on a loaded machine.
SHORT = ("--sim", "--seconds", "0.5", "--output", "16")


def configurations_run_on_the_simulated_gpu(build):
    done, files = run(build, *SHORT, "two", "dedicated", "two-bare", "two-over", "idle")
    found = json.loads(files["serving.json"])["engines"]["own"]
    assert not found["failures"], done.stderr
    levels = {name: [r["level"] for r in found["rows"] if r["config"] == name] for name in rows.CONFIGS}
    assert levels["dedicated"] == levels["two"] == levels["two-bare"] == levels["two-over"] == [2, 8, 32], levels
    assert levels["idle"] == [2, 8, 32, 8], "and once more beside the parked one"
    assert levels["four"] == [], levels
    for row in found["rows"]:
        assert len(row["summary"]["each"]) == (2 if row["config"].startswith("two") else 1), row
        # Within half a second one of two servers may get no turn on a loaded machine: over all levels each answers.
        assert row["summary"]["sum"] > 0 and row["summary"]["first_p99_ms"] > 0, row
        reference = row["config"] in ("dedicated", "two-bare")
        assert ("launches" in row) != reference, row
        assert row["values"] == "reference" if reference else row["values"].endswith(" equal"), row
    assert len(found["goals"]) == 6 and len(found["wake"]) == 1, found
    assert files["serving.log"].count("sluice: exit") == 6, files["serving.log"]
    over = [line for line in files["serving.log"].splitlines() if "live_bytes=805306368" in line]
    assert len(over) == 2, "three quarters of a GiB each, together one and a half times the GPU"
    assert "| two at 0.5 + 0.5 | 32 |" in files["serving.md"], files["serving.md"]
    # The servers' figures depend on the machine's load: a missed goal is no failure of this test.
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr


def rounds_run_in_turn(build):
    done, files = run(build, *SHORT, "--levels", "2", "--rounds", "2", "two", "dedicated")
    found = json.loads(files["serving.json"])["engines"]["own"]
    assert [row["config"] for row in found["rows"]] == ["dedicated", "two"] * 2, done.stderr
    assert len(found["measured"]["two"]["2"]) == 2 and len(found["goals"]) == 1, found


def rows_without_time_are_named(build):
    done, files = run(build, "--sim", "--seconds", "1", "--budget-seconds", "30", "dedicated")
    assert done.returncode == 1 and "dedicated: left out" in done.stderr, done.stderr
    assert "dedicated: left out" in files["serving.md"], files


def wrong_words_are_refused(build):
    done, _ = run(build, "--sim", "three")
    assert done.returncode == 1 and "'three' is unknown; accepted: dedicated, two," in done.stderr, done.stderr
    done, _ = run("/nowhere", "dedicated")
    assert done.returncode == 1 and "/nowhere/bin/sluice is missing" in done.stderr, done.stderr


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    for test in (
        figures_of_a_level_are_sums_and_percentiles,
        goals_compare_figures_of_the_same_level,
        answers_that_differ_fail_whichever_server_ran_first,
        answers_that_differ_without_the_hook_are_no_reference,
        managed_memory_of_each_configuration_fits_the_guards_quarter,
        each_server_has_its_part_of_the_guards_limit,
        a_server_that_dies_or_hangs_is_named_with_its_last_words,
        llama_server_is_asked_by_http,
        the_packed_source_is_the_input_of_the_build,
    ):
        test()
        print("ok", test.__name__, flush=True)
    for test in (
        configurations_run_on_the_simulated_gpu,
        rounds_run_in_turn,
        rows_without_time_are_named,
        wrong_words_are_refused,
    ):
        test(build)
        print("ok", test.__name__, flush=True)


main()
