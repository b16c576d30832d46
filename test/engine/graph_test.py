"""CUDA graphs, captures and allocator reports: graph_test.py BUILD [NAME...] | --list"""

import re
import subprocess
import sys
import tempfile

from engine_rig import (
    ALL_MODES,
    GIB,
    SMALL,
    built,
    environment,
    expect,
    explained,
    main,
    run,
    same,
    scenario,
    skip_if_sanitized,
    test,
)

FULL_FACTOR = {"SLUICE_MEMORY_FACTOR": "100"}
scenario("graph", of="graphs_under_pressure", modes=ALL_MODES)
scenario("graph_keeps_its_hot_part", env=FULL_FACTOR, modes=ALL_MODES)
scenario("graph_with_new_parameters")
scenario("graph_with_conditions", env=FULL_FACTOR, modes=ALL_MODES)
scenario("pressure_beside_a_capture")
scenario("captures_begin_under_pressure", env={"SIMGPU_CAPTURE": "error"})
scenario("reported_during_a_capture")


@test
def reports():
    def dropped(_, tight):
        expect(tight.figure("saved_bytes") > GIB, "freed ranges are dropped without a copy", str(tight))

    same("reported_frees_are_dropped", check=dropped)


@test
def graph_larger_than_the_budget():
    def logged(hooked, tight):
        expect("WARN" not in hooked.err, "no warning where the graph fits", hooked.err)
        expect(len(tight.logged("WARN", "CUDA graph", " GiB")) == 1, "one warning names the graph", tight.err)

    same("graph_larger_than_the_budget", check=logged)


@test
def graph_uses_the_fastest_strategy():
    tight = run("graph_keeps_its_hot_part", SMALL, env={**FULL_FACTOR, "SLUICE_LOG_LEVEL": "DEBUG"})
    timed = [event["strategy"] for event in tight.events("graph_time")]
    expect(len(timed) > 20, "each replay is timed", tight.err)
    choices = tight.events("graph_choice")
    expect(choices and choices[-1]["best"] == timed[-1], "the last replay uses the chosen strategy", tight.err)
    times = {key.removesuffix("_ms"): ms for key, ms in choices[-1].items() if key.endswith("_ms")}
    expect(len(times) >= 3 and min(times, key=times.get) == choices[-1]["best"], "it is the fastest", tight.err)
    logged = [re.findall(r"[0-9.]+ ms", line) for line in tight.logged("INFO", " ms")]
    expect(len(logged) == 1 and len(logged[0]) >= 3, "the choice is logged once at INFO, with all times", tight.err)


@test
def graphs_are_explained():
    """A graph's launch is explained by its nodes, in the recording and in a recording of its replay."""
    skip_if_sanitized("the replayer needs the shim")
    with tempfile.TemporaryDirectory() as folder:
        recorded, replayed, other = (f"{folder}/{name}.sltrace" for name in ("recorded", "replayed", "other"))
        run("graphs_under_pressure", SMALL, env={"SLUICE_RECORD": recorded})
        played = subprocess.run(
            [str(built("bin", "sluice-replay")), recorded],
            capture_output=True,
            text=True,
            env=environment(SMALL, more={"SLUICE_RECORD": replayed}),
        )
        expect(played.returncode == 0, "a recording with graphs is replayed", played.stderr)
        nodes = "6 nodes (6 by parameters): parameters {} MiB; the trace has no truth for 6 of its 6 kernels"
        for file in (recorded, replayed):
            text = explained(recorded, file)
            lines = re.findall(r"^#\d+ graph, (.*)$", text, re.M)
            expect(lines == 8 * [nodes.format("384.0"), nodes.format("768.0")], file, text)
            expect(
                len(re.findall(r"^#\d+ named \(captured\): parameters", text, re.M)) == 12,
                "the captured launches are explained",
                text,
            )
        run("graph_with_conditions", SMALL, env={"SLUICE_RECORD": other, **FULL_FACTOR})
        text = explained(other, other)
        expect(
            text.count("graph: nothing predicted; built by calls that traces do not hold, and not played") == 12,
            "graphs that are missing from the trace are named",
            text,
        )


if __name__ == "__main__":
    sys.exit(main())
