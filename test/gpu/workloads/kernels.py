"""Triton kernels (Triton needs their source in a file)."""

import triton
import triton.language as tl


@triton.jit
def _scale_add(x, y, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(x + at, tl.load(x + at, inside) * factor + tl.load(y + at, inside), inside)


def scale_add(x, y, factor):
    n = x.numel()
    _scale_add[(triton.cdiv(n, 4096),)](x, y, factor, n, BLOCK=4096)


@triton.jit
def _write_page(cache, page, value, elements, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    number = tl.load(page)
    tl.store(cache + number * elements + at, tl.load(value + at))


@triton.jit
def _read_pages(cache, table, out, elements, BLOCK: tl.constexpr):
    number = tl.load(table + tl.program_id(0))
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(0, elements, BLOCK):
        total += tl.load(cache + number * elements + at + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(total))


def write_page(cache, page, value):
    """The first elements of cache[page] = value, as a server's kernel writes a token's keys: `page` lies on the GPU."""
    _write_page[(1,)](cache, page, value, cache.shape[1], BLOCK=value.numel())


def read_pages(cache, table, out):
    """out[i] = the sum of cache[table[i]], as paged attention reads the pages of its sequences."""
    _read_pages[(table.numel(),)](cache, table, out, cache.shape[1], BLOCK=4096)


@triton.jit
def _grouped(table, x, out, inner, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    weight = tl.load(table + tl.program_id(1)).to(tl.pointer_type(tl.bfloat16))
    rows, columns = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x += tl.program_id(1) * ROWS * inner
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for depth in range(0, inner, DEPTH):
        at = depth + tl.arange(0, DEPTH)
        a = tl.load(x + rows[:, None] * inner + at[None, :])
        total += tl.dot(a, tl.load(weight + at[:, None] * width + columns[None, :]))
    out += tl.program_id(1) * ROWS * width
    tl.store(out + rows[:, None] * width + columns[None, :], total.to(tl.bfloat16))


def grouped(table, x, out):
    """out[i] = x[i] @ W[i], where the addresses of the matrices W lie in a table on the GPU: no argument names them."""
    experts, rows, inner = x.shape
    _grouped[(out.shape[2] // 64, experts)](table, x, out, inner, out.shape[2], ROWS=rows, COLUMNS=64, DEPTH=64)
