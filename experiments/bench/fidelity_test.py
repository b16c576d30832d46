#!/usr/bin/env python3
"""fidelity.py keeps measured cells and judges by the right prediction: without a GPU, with predictions of its own."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile

import fidelity

RESULTS = {
    "machine": {"gpus": ["A"], "driver": "1", "date": "today"},
    "rates": {"fault_gbps": 9.0},
    "benchmarks": [
        {
            "name": "fidelity decode",
            "figures": {"unhooked": [20.0], "fits": [None], "faults 2048": [300.0]},
            "host_us": {"unhooked": 200.0},
        },
        {"name": "single calls", "figures": {"unhooked": [1.0]}},
    ],
}


def outcome(predicted):
    """Exit status and table for a cell's predictions: at the recorded pace, the measured pace, the machine's rates."""

    def predict(build, hook, name, variant, pace=1.0, profile="h200"):
        if profile != "h200":
            assert pathlib.Path(profile).read_text() == "fault_gbps = 9.0\n", profile
            return predicted[2]
        if pace != 1.0:
            assert pace == 0.5, pace
            return predicted[1]
        return predicted[0]

    fidelity.predict, fidelity.recorded_us, sys.argv = predict, lambda build: 400.0, ["fidelity.py"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            fidelity.main()
        except SystemExit as end:
            return end.code, out.getvalue()


with tempfile.TemporaryDirectory() as folder:
    fidelity.MEASURED = pathlib.Path(folder) / "measured.json"
    fidelity.MEASURED.write_text(
        json.dumps(
            {
                "calls": [
                    {
                        "machine": "old",
                        "rates": {},
                        "cells": {"decode unhooked": {"ms": 1}, "decode sluice 2048": {"ms": 20.0}},
                    }
                ]
            }
        )
    )
    results = pathlib.Path(folder) / "results.json"
    results.write_text(json.dumps(RESULTS))
    fresh = fidelity.read(results)
    assert fresh[0]["cells"] == {
        "decode unhooked": {"ms": 20.0, "host_us": 200.0},
        "decode faults 2048": {"ms": 300.0},
    }, fresh
    fidelity.take(fresh)
    calls = fidelity.read(fidelity.MEASURED)
    assert [sorted(call["cells"]) for call in calls] == [
        ["decode sluice 2048"],
        ["decode faults 2048", "decode unhooked"],
    ], calls
    fidelity.take(fresh)
    assert fidelity.read(fidelity.MEASURED) == calls, "taken twice"

    fidelity.take(
        [
            {
                "machine": "new",
                "rates": {"fault_gbps": 9.0},
                "cells": {"decode faults 2048": {"ms": 20.0}, "decode unhooked": {"ms": 20.0, "host_us": 200.0}},
            }
        ]
    )
    code, text = outcome((40.0, 60.0, 21.0))
    # The cells without a measured pace are judged as recorded, the one with it at that pace and by its machine's rates.
    assert (
        code == 1
        and "2 cells are off by more than 20 %, by the built-in profile and the recorded host's pauses 3" in text
    ), (code, text)
    assert "| decode | unhooked | 2 | 20.0 | 40.0 | **+100 %** | 200 | 60.0 | **+200 %** | 21.0 | +5 % |" in text, text
    assert "| decode | sluice 2048 MiB | 1 | 20.0 | 40.0 | **+100 %** | not measured |" in text, text
    code, text = outcome((20.0, 60.0, 21.0))
    assert code == 0 and "0 cells are off" in text, (code, text)
    code, text = outcome((20.0, 21.0, 60.0))
    assert code == 1 and "1 cells are off" in text, (code, text)
