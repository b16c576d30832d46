"""A mixture of experts that decodes: each layer uses 6 of its 18 experts in a step, chosen by Zipf's law.

`--grouped`: one product for all chosen experts, whose addresses lie in a table on the GPU. Otherwise a loop over them.
Reports the steps behind the first two seconds.
"""

import argparse
import random
import statistics
import time

from common import result, seeded_torch, skip, timed_steps

VALUES = 24  # steps whose values are compared


def choose(generator, experts, used):
    """Distinct experts, the popular ones more often."""
    chosen = []
    while len(chosen) < used:
        one = generator.choices(range(experts), weights=[(k + 1) ** -1.2 for k in range(experts)])[0]
        if one not in chosen:
            chosen.append(one)
    return sorted(chosen)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--grouped", action="store_true")
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--experts", type=int, default=18)
    p.add_argument("--used", type=int, default=6)
    p.add_argument("--width", type=int, default=1024, help="an expert's weights: 16 x width^2 bytes")
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--seconds", type=float, default=6)
    a = p.parse_args()
    torch = seeded_torch()
    try:
        from kernels import grouped
    except ImportError as error:
        skip(f"no Triton here: {error}")
    generator = random.Random(11)

    def weights(inner, width):
        return torch.randn(inner, width, device="cuda").mul_(0.02).bfloat16()

    up = [[weights(a.width, 4 * a.width) for _ in range(a.experts)] for _ in range(a.layers)]
    down = [[weights(4 * a.width, a.width) for _ in range(a.experts)] for _ in range(a.layers)]
    # The popular experts of a layer are not those of the next.
    order = [generator.sample(range(a.experts), a.experts) for _ in range(a.layers)]
    first = torch.ones(a.rows, a.width, device="cuda", dtype=torch.bfloat16)

    def by_loop(x, i, chosen):
        total = torch.zeros_like(x, dtype=torch.float32)
        for k in chosen:
            total += (torch.tanh(x @ up[i][k]) @ down[i][k]).float()
        return total

    def by_table(x, i, chosen):
        tables = torch.tensor([[m[i][k].data_ptr() for k in chosen] for m in (up, down)], dtype=torch.int64)
        tables = tables.to("cuda")
        hidden = torch.empty(a.used, a.rows, 4 * a.width, device="cuda", dtype=torch.bfloat16)
        grouped(tables[0], x.expand(a.used, -1, -1).contiguous(), hidden)
        out = torch.empty(a.used, a.rows, a.width, device="cuda", dtype=torch.bfloat16)
        grouped(tables[1], torch.tanh(hidden), out)
        return out.float().sum(0)

    def step():
        x = first
        for i in range(a.layers):
            chosen = [order[i][k] for k in choose(generator, a.experts, a.used)]
            x = torch.tanh(x + (by_table if a.grouped else by_loop)(x, i, chosen)).bfloat16()
        return x.float().sum()

    step()
    torch.cuda.synchronize()
    live = torch.cuda.max_memory_allocated()
    values, settled = [], []
    begin = time.monotonic()
    while time.monotonic() < begin + a.seconds or len(settled) < 20 or len(values) < VALUES:
        value, ms = timed_steps(torch, step, 1)
        values += value
        if time.monotonic() > begin + 2:
            settled += ms
    result(values[:VALUES], live, settled, median_ms=round(statistics.median(settled), 3), steps=len(values))


main()
