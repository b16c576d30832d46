"""Common to the workload programs: one RESULT line on stdout, and seeds."""

import json
import os
import resource
import sys
import time

START = time.monotonic()


def result(values, live_bytes, step_ms=(), deterministic=True, **more):
    """values: must be equal with and without the hook (floats as hex, so that bits are compared). A NaN ends the
    program: it would hide any difference."""
    if any(isinstance(v, float) and v != v for v in values):
        sys.exit(f"not a number among the values: {values}")
    text = [v.hex() if isinstance(v, float) else v for v in values]
    print(
        "RESULT "
        + json.dumps(
            {
                "values": text,
                "live_bytes": int(live_bytes),
                "step_ms": [round(s, 4) for s in step_ms],
                "deterministic": deterministic,
                "wall_s": round(time.monotonic() - START, 3),
                "spent": spent(),
                **more,
            }
        ),
        flush=True,
    )


def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_s": round(used.ru_utime, 2),
        "system_s": round(used.ru_stime, 2),
        "minor_faults": used.ru_minflt,
        "waits": used.ru_nvcsw,
        "preempted": used.ru_nivcsw,
    }


def skip(reason):
    print("RESULT " + json.dumps({"skipped": reason}), flush=True)
    sys.exit(0)


def seeded_torch(seed=7):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch
    except ImportError as error:
        skip(f"no PyTorch here: {error}")
    if not torch.cuda.is_available():
        skip("torch.cuda is not available")
    torch.manual_seed(seed)
    # Without warn_only: only then does attention's backward use a deterministic algorithm. cuDNN's attention has none.
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = False
    return torch


def timed_steps(torch, step, steps):
    """Runs step() `steps` times; returns its values as floats, and milliseconds by GPU events around each."""
    values, times = [], []
    for _ in range(steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        value = step()
        end.record()
        torch.cuda.synchronize()
        values.append(float(value))
        times.append(begin.elapsed_time(end))
    return values, times
