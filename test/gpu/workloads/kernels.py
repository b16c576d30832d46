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


@triton.jit
def _attend_pages(
    q, keys, values, table, positions, partial, highest, total, scale, pages, splits,
    PAGE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row).to(tl.int32) + 1
    members, columns = tl.arange(0, 16), tl.arange(0, WIDTH)  # of a product: 16 rows at least
    mine = head * GROUP + members
    inside = members < GROUP
    query = tl.load(q + (row * HEADS + mine[:, None]) * WIDTH + columns[None, :], inside[:, None], other=0.0)
    top = tl.full((16,), -1e30, dtype=tl.float32)
    weight = tl.zeros((16,), dtype=tl.float32)
    sums = tl.zeros((16, WIDTH), dtype=tl.float32)
    first = split * SPLIT
    for begin in range(first, tl.minimum(first + SPLIT, length), TILE):
        at = begin + tl.arange(0, TILE)
        known = at < length
        page = tl.load(table + row * pages + at // PAGE, known, other=0).to(tl.int64)
        slot = (page * PAGE + at % PAGE) * (HEADS // GROUP) + head
        key = tl.load(keys + slot[:, None] * WIDTH + columns[None, :], known[:, None], other=0.0)
        score = tl.where(known[None, :], tl.dot(query, tl.trans(key)).to(tl.float32) * scale, -1e30)
        above = tl.maximum(top, tl.max(score, 1))
        part, kept = tl.exp(score - above[:, None]), tl.exp(top - above)
        value = tl.load(values + slot[:, None] * WIDTH + columns[None, :], known[:, None], other=0.0)
        sums = sums * kept[:, None] + tl.dot(part.to(value.dtype), value).to(tl.float32)
        weight = weight * kept + tl.sum(part, 1)
        top = above
    out = (row * HEADS + mine) * splits + split
    tl.store(partial + out[:, None] * WIDTH + columns[None, :], sums, inside[:, None])
    tl.store(highest + out, top, inside)
    tl.store(total + out, weight, inside)


@triton.jit
def _join_splits(partial, highest, total, out, splits, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    row, columns, at = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, SPLITS)
    known = at < splits
    top = tl.load(highest + row * splits + at, known, other=-1e30)
    part = tl.exp(top - tl.max(top, 0))
    weight = tl.sum(tl.load(total + row * splits + at, known, other=0.0) * part, 0)
    sums = tl.load(partial + (row * splits + at)[:, None] * WIDTH + columns[None, :], known[:, None], other=0.0)
    tl.store(out + row * WIDTH + columns, tl.sum(sums * part[:, None], 0) / weight)


class PagedAttention:
    """Attention of one new token of each row over its pages, as flash decoding: each split of a sequence by its own
    program, then their sum. The scratch tensors stay, as a CUDA graph needs them."""

    SPLIT = 256

    def __init__(self, torch, device, rows, heads, width, longest):
        self.splits = triton.cdiv(longest, self.SPLIT)
        self.partial = torch.empty(rows, heads, self.splits, width, device=device, dtype=torch.float32)
        self.highest = torch.empty(rows, heads, self.splits, device=device, dtype=torch.float32)
        self.total = torch.empty_like(self.highest)

    def __call__(self, q, keys, values, table, positions, page, out):
        rows, heads, width = q.shape
        kv_heads = keys.shape[1]
        _attend_pages[(rows, kv_heads, self.splits)](
            q, keys, values, table, positions, self.partial, self.highest, self.total, width**-0.5, table.shape[1],
            self.splits, PAGE=page, HEADS=heads, GROUP=heads // kv_heads, WIDTH=width, SPLIT=self.SPLIT, TILE=64,
        )  # fmt: skip
        _join_splits[(rows * heads,)](
            self.partial, self.highest, self.total, out, self.splits, WIDTH=width,
            SPLITS=triton.next_power_of_2(self.splits),
        )  # fmt: skip
        return out
