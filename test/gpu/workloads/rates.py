"""This machine's rates for managed memory, by the keys of the simulated card's profile (test/simgpu/core/profile.h). No hook; 2 GiB, 5 s.

Faults, and how the link's two directions share it, depend on the machine's host and differ from one machine to the next; a prediction for a machine
takes that machine's own micro-benchmarks.
"""
import json
import os
import statistics
import sys
import time

from common import seeded_torch
from managed import CARD, HOST, Managed

SIZE, MIB = 1 << 30, 1 << 20
torch = seeded_torch()


def wall(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return SIZE / (time.perf_counter() - begin) / 1e9


def median(before, call, rounds=3):
    rates = []
    for _ in range(rounds):
        before()
        rates.append(wall(call))
    return statistics.median(rates)


def both(works, alone):
    """GB/s of two transfers together while both run: two streams behind one event, so that neither waits for the calling thread. What is left
    of the longer one when the other ends goes at its rate alone."""
    streams = [torch.cuda.Stream() for _ in works]
    start, ends = torch.cuda.Event(enable_timing=True), [torch.cuda.Event(enable_timing=True) for _ in works]
    torch.cuda.synchronize()
    torch.cuda._sleep(60_000_000)  # 30 ms: until all is queued
    start.record()
    for stream, end, work in zip(streams, ends, works):
        stream.wait_event(start)
        with torch.cuda.stream(stream):
            work(stream.cuda_stream)
            end.record()
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(end) * 1e-3 for end in ends]
    longer = seconds.index(max(seconds))
    rest = (max(seconds) - min(seconds)) * alone[longer] * 1e9
    return (2 * SIZE - min(rest, SIZE)) / min(seconds) / 1e9


def main():
    allowed = int(os.environ.get("SLUICE_MANAGED_LIMIT", 0))
    if allowed < 2 * SIZE:
        sys.exit(f"rates.py: SLUICE_MANAGED_LIMIT is {allowed}: 2 GiB of managed memory are needed (test/gpu/guard.py sets it)")
    a, b = Managed(torch, SIZE), Managed(torch, SIZE)
    plain = torch.empty(SIZE // 4, device="cuda")
    for one in (a, b):
        one.prefetch(CARD)
        one.bytes.zero_()
        one.prefetch(HOST)  # once: the host's pages are made
    numbers = a.bytes.view(torch.float32)
    out, back = (lambda: a.prefetch(HOST)), (lambda: a.prefetch(CARD))
    # As the profile's own figure was taken: all of the card reads one stretch after the other.
    by_faults = lambda stream=0: numbers.sum()
    rates = {"fault_gbps": median(out, by_faults)}
    elementwise = median(out, lambda: torch.add(numbers, 1, out=plain))
    print(f"faults of an elementwise kernel, each block its own place: {elementwise:.2f} GB/s", file=sys.stderr)
    for name, piece in (("2m", 2 * MIB), ("16m", 16 * MIB), ("64m", 64 * MIB), ("4g", SIZE)):
        rates[f"prefetch_in_{name}_gbps"] = median(out, lambda: a.prefetch(CARD, piece))
    rates["prefetch_out_2m_gbps"] = median(back, lambda: a.prefetch(HOST, 2 * MIB))
    rates["prefetch_out_gbps"] = median(back, lambda: a.prefetch(HOST, 64 * MIB))
    away = lambda stream: b.prefetch(HOST, 64 * MIB, stream)
    comes = lambda stream: a.prefetch(CARD, 64 * MIB, stream)
    for name, first, alone in (("managed_duplex_gbps", comes, "prefetch_in_64m_gbps"), ("fault_duplex_gbps", by_faults, "fault_gbps")):
        sums = []
        for _ in range(3):
            a.prefetch(HOST)
            b.prefetch(CARD)
            sums.append(both((first, away), (rates[alone], rates["prefetch_out_gbps"])))
        rates[name] = statistics.median(sums)
    print("RESULT " + json.dumps({"rates": {key: round(value, 2) for key, value in rates.items()}}), flush=True)


main()
