"""Decode steps of an inference server: each layer names its weights and its whole paged cache, and touches the pages of
the sequences that run (Triton kernels, as servers use them).

Reports the steps behind the first two seconds, and `first_ms`: the mean of the first 50 steps.
"""

import argparse
import random
import statistics
import time

from common import result, seeded_torch, skip, timed_steps

PAGE = 32 << 10  # elements: 64 KiB
VALUES = 24  # steps whose values are compared


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pages", choices=("first", "strewn", "churn"), default="first")
    p.add_argument("--graph", action="store_true", help="a step is one CUDA graph")
    p.add_argument("--block", action="store_true", help="one allocation holds the caches of all layers")
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--cache-mib", type=int, default=4096)
    p.add_argument("--width", type=int, default=2560, help="a layer's weights: 8 x width^2 bytes")
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--seconds", type=float, default=6)
    a = p.parse_args()
    torch = seeded_torch()
    try:
        from kernels import read_pages, write_page
    except ImportError as error:
        skip(f"no Triton here: {error}")
    pages = (a.cache_mib << 20) // a.layers // (2 * PAGE)
    random.seed(11)
    used = sorted(random.sample(range(pages), pages // 2)) if a.pages == "strewn" else list(range(pages // 12))
    up = [torch.randn(a.width, 2 * a.width, device="cuda").mul_(0.02).bfloat16() for _ in range(a.layers)]
    down = [torch.randn(2 * a.width, a.width, device="cuda").mul_(0.02).bfloat16() for _ in range(a.layers)]
    shape = (a.layers, pages, PAGE) if a.block else (pages, PAGE)
    caches = [torch.zeros(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(1 if a.block else a.layers)]
    caches = list(caches[0]) if a.block else caches
    x = torch.ones(a.rows, a.width, device="cuda", dtype=torch.bfloat16)
    table = torch.tensor(used, device="cuda", dtype=torch.int64)
    sums = torch.zeros(pages, device="cuda", dtype=torch.float32)
    newest = table[:1].clone()

    def step():
        for i in range(a.layers):
            hidden = x @ up[i]
            write_page(caches[i], newest, hidden.view(-1)[:2048])
            read_pages(caches[i], table, sums)
            x.copy_((torch.tanh(hidden @ down[i]) + sums[: table.numel()].mean() * 1e-3).bfloat16())
        return x.float().sum()

    out = step()
    torch.cuda.synchronize()
    run = step
    if a.graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()

        def run():
            graph.replay()
            return out

    live = torch.cuda.max_memory_allocated()
    values, first, settled = [], [], []
    begin = time.monotonic()
    while time.monotonic() < begin + a.seconds or len(settled) < 20 or len(values) < VALUES:
        if a.pages == "churn" and not a.graph:
            # One page more in each step; each 20 steps a sequence of as many pages ends.
            used = used[20 if len(values) % 20 == 19 else 0 :] + [(used[-1] + 1) % pages]
            table = torch.tensor(used, device="cuda", dtype=torch.int64)
            newest = table[-1:].clone()
        value, ms = timed_steps(torch, run, 1)
        values += value
        if len(first) < 50:
            first += ms
        if time.monotonic() > begin + 2:
            settled += ms
    result(
        values[:VALUES],
        live,
        settled,
        first_ms=round(sum(first) / len(first), 3),
        median_ms=round(statistics.median(settled), 3),
        steps=len(values),
    )


main()
