"""This machine's rates for managed memory, by the keys of simgpu's profiles (simgpu/core/profile.h). No hook; 2 GiB,
8 s.

The rates of faults, and of both directions of the link together, depend on the host and differ between machines. A
prediction for a machine needs that machine's own micro-benchmarks.
"""

import json
import os
import statistics
import sys
import time

from managed import CARD, HOST, Managed

from common import seeded_torch

SIZE, MIB = 1 << 30, 1 << 20
torch = seeded_torch()


def wall(call, size):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return size / (time.perf_counter() - begin) / 1e9


def median(before, call, rounds=3, size=SIZE):
    rates = []
    for _ in range(rounds):
        before()
        rates.append(wall(call, size))
    return statistics.median(rates)


def kinds(numbers):
    """GB/s by demand faults for each kind of kernel, by the profile's keys: the calls of the programs of
    experiments/traces. A rate is the harmonic mean of its kernels' rates."""
    halves = numbers.view(torch.bfloat16)
    scratch = torch.empty_like(numbers)

    def matrices(rows, columns):
        return [
            halves[at : at + rows * columns].view(rows, columns)
            for at in range(0, halves.numel() - rows * columns + 1, rows * columns)
        ]

    def products(rows, *shapes):
        for out_features, in_features in shapes:
            weights, x = (
                matrices(out_features, in_features),
                torch.ones(rows, in_features, device="cuda", dtype=torch.bfloat16),
            )
            yield (
                lambda x=x, weights=weights: [torch.nn.functional.linear(x, w) for w in weights],
                2 * len(weights) * weights[0].numel(),
            )

    pictures = halves.view(-1, 32, 32, 128).permute(0, 3, 1, 2)  # channels last
    filters = torch.ones(128, 128, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    scale = torch.ones(2048, device="cuda", dtype=torch.bfloat16)
    return {
        "fault_elementwise_gbps": [(lambda: torch.add(numbers, 1, out=scratch), SIZE), (lambda: numbers.add_(1), SIZE)],
        "fault_lists_gbps": [(lambda: torch._foreach_add_(list(numbers.split(1 << 22)), 1.0), SIZE)],
        "fault_reduction_gbps": [
            (lambda: numbers.sum(), SIZE),
            (
                lambda: [
                    torch.nn.functional.layer_norm(part.view(-1, 2048), (2048,), scale, scale)
                    for part in halves.split(1 << 22)
                ],
                SIZE,
            ),
        ],
        "fault_product_gbps": list(products(2048, (8192, 2048), (2048, 8192))),
        "fault_few_rows_gbps": list(products(4, (6144, 2048), (2048, 6144))),
        "fault_convolution_gbps": [
            (lambda: [torch.nn.functional.conv2d(part, filters, padding=1) for part in pictures.split(256)], SIZE)
        ],
    }


def both(works, alone):
    """GB/s of two transfers together while both run. Two streams wait for one event, so that neither waits for the
    calling thread. When one ends, the rest of the other moves at its rate alone."""
    streams = [torch.cuda.Stream() for _ in works]
    start, ends = torch.cuda.Event(enable_timing=True), [torch.cuda.Event(enable_timing=True) for _ in works]
    torch.cuda.synchronize()
    torch.cuda._sleep(60_000_000)  # 30 ms: until both are queued
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
        sys.exit(
            f"rates.py: SLUICE_MANAGED_LIMIT is {allowed}: 2 GiB of managed memory are needed "
            "(test/gpu/guard.py sets it)"
        )
    a, b = Managed(torch, SIZE), Managed(torch, SIZE)
    for one in (a, b):
        one.prefetch(CARD)
        one.bytes.zero_()
        one.prefetch(HOST)  # once, so that the host's pages exist
    numbers = a.bytes.view(torch.float32)
    out, back = (lambda: a.prefetch(HOST)), (lambda: a.prefetch(CARD))
    a.prefetch(CARD)
    # As the profile's own figure was measured: the whole GPU reads one stretch after the other.
    by_faults = lambda stream=0: numbers.sum()
    rates = {"fault_gbps": median(out, by_faults)}
    for name, kernels in kinds(numbers).items():
        for call, _ in kernels:
            call()  # libraries choose and load their kernels
        rates[name] = statistics.harmonic_mean([median(out, call, size=size) for call, size in kernels])
    for name, piece in (("2m", 2 * MIB), ("16m", 16 * MIB), ("64m", 64 * MIB), ("4g", SIZE)):
        rates[f"prefetch_in_{name}_gbps"] = median(out, lambda: a.prefetch(CARD, piece))
    rates["prefetch_out_2m_gbps"] = median(back, lambda: a.prefetch(HOST, 2 * MIB))
    rates["prefetch_out_gbps"] = median(back, lambda: a.prefetch(HOST, 64 * MIB))
    evict = lambda stream: b.prefetch(HOST, 64 * MIB, stream)
    fetch = lambda stream: a.prefetch(CARD, 64 * MIB, stream)
    for name, first, alone in (
        ("managed_duplex_gbps", fetch, "prefetch_in_64m_gbps"),
        ("fault_duplex_gbps", by_faults, "fault_gbps"),
    ):
        sums = []
        for _ in range(3):
            a.prefetch(HOST)
            b.prefetch(CARD)
            sums.append(both((first, evict), (rates[alone], rates["prefetch_out_gbps"])))
        rates[name] = statistics.median(sums)
    print("RESULT " + json.dumps({"rates": {key: round(value, 2) for key, value in rates.items()}}), flush=True)


main()
