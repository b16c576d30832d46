"""The speed of this machine's host at PyTorch's launches, in the calling process: a micro-benchmark for replays, whose
traces were recorded on another host.

One round is the MLPs of a decoder's 24 layers (six operations, a dozen launches each) with matrices so small that the
GPU is always done first. The same six operations are in experiments/traces/decode.sltrace, where `sluice-trace
interval` prints the recorded host's time for them.
"""

import statistics
import time


def microseconds(torch, layers=24, width=256, rounds=9):
    """Median over the rounds of the host's time for one layer's MLP."""
    from models import gated

    linear = lambda i, o: torch.nn.Linear(i, o, bias=False, device="cuda", dtype=torch.bfloat16)
    stack = [
        torch.nn.ModuleDict(
            {"gate": linear(width, 3 * width), "up": linear(width, 3 * width), "down": linear(3 * width, width)}
        )
        for _ in range(layers)
    ]
    times = []
    with torch.no_grad():
        for _ in range(rounds):
            x = torch.ones(4, width, device="cuda", dtype=torch.bfloat16)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for layer in stack:
                x = gated(layer, x)
            times.append((time.perf_counter() - begin) * 1e6 / layers)
            torch.cuda.synchronize()
    return statistics.median(times)
