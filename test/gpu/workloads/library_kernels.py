"""Triton kernels of library_features.py: one that is tuned, and one whose programs stay and take tiles by a counter."""

import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((512, 4), (1024, 4), (4096, 8))],
    key=["n"],
    restore_value=["x"],
)
@triton.jit
def _tuned_mix(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(x + at, tl.load(x + at, inside) * 0.5 + tl.load(y + at, inside), inside)


def tuned_mix(x, y):
    """x = x / 2 + y, each element alone: the same bits with every configuration."""
    n = x.numel()
    _tuned_mix[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)


@triton.jit
def _histogram(x, bins, counter, tiles, n, BLOCK: tl.constexpr):
    tile = tl.atomic_add(counter, 1)
    while tile < tiles:
        at = tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        value = tl.load(x + at, inside, other=0.0)
        place = tl.minimum(tl.maximum((value * 64.0 + 512.0).to(tl.int32), 0), 1023)
        tl.atomic_add(bins + place, 1, mask=inside)
        tile = tl.atomic_add(counter, 1)


def histogram(x, bins, counter, programs):
    """Adds to `bins` by programs that stay until no tile is left: sums of integers, the same in any order."""
    counter.zero_()
    _histogram[(programs,)](x, bins, counter, triton.cdiv(x.numel(), 4096), x.numel(), BLOCK=4096)
