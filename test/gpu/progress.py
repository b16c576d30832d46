"""The progress of build/bin/tenant: `done` in its result is a list of [monotonic seconds, launches]."""

import itertools


def done_at(result, t):
    """Launches done by monotonic time t, interpolated between samples."""
    samples = result["done"]
    if t <= samples[0][0]:
        return 0.0
    for (t0, n0), (t1, n1) in itertools.pairwise(samples):
        if t < t1:
            return n0 + (n1 - n0) * (t - t0) / (t1 - t0) if t1 > t0 else n1
    return float(samples[-1][1])


def windows(results, length, skip, step=0.5):
    """For every window: each tenant's share of all launches, and of the GPU's time."""
    begin, end = max(r["done"][0][0] for r in results) + skip, min(r["done"][-1][0] for r in results)
    out = []
    t = begin
    while t + length <= end:
        parts = [done_at(r, t + length) - done_at(r, t) for r in results]
        out.append(
            (
                [p / sum(parts) if sum(parts) else 0 for p in parts],
                [p * r["kernel_us"] / 1e6 / length for p, r in zip(parts, results)],
            )
        )
        t += step
    return out


def rate(result, skip=1.0):
    """Launches a second, the first `skip` seconds left out."""
    begin, end = result["done"][0][0] + skip, result["done"][-1][0]
    return (done_at(result, end) - done_at(result, begin)) / max(end - begin, 1e-9)
