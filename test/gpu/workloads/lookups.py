"""Many lookups in quick succession: random rows of a table larger than the budget, or of several tables that together
are.

Reports the tables' resident bytes afterwards. A page that the driver moved to the GPU is no longer mapped for the
host, and a page that was evicted is mapped again (the open driver maps the pages that a prefetch migrates). So
/proc/self/pagemap tells them apart, independently of the hook.
"""

import argparse
import array

from common import result, seeded_torch, timed_steps

PRESENT = 1 << 63


def on_card_bytes(tensor):
    """Resident bytes of a tensor that was written whole. Unhooked, memory is not managed: no page is mapped for the
    host, and all of it counts."""
    import mmap

    page, begin, size = mmap.PAGESIZE, tensor.data_ptr(), tensor.numel() * tensor.element_size()
    first, last = begin // page, (begin + size - 1) // page
    entries = array.array("Q")
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        left = (last - first + 1) * 8
        while left:
            piece = pagemap.read(min(left, 1 << 20))
            entries.frombytes(piece)
            left -= len(piece)
    return sum(1 for entry in entries if not entry & PRESENT) * page


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--table-mib", type=int, default=3072)
    p.add_argument("--tables", type=int, default=1, help="of that size each; lookups go to one after the other")
    p.add_argument("--lookups", type=int, default=32, help="in a step, of --rows rows of 4 KiB each")
    p.add_argument("--rows", type=int, default=512)
    p.add_argument("--steps", type=int, default=16)
    a = p.parse_args()
    torch = seeded_torch()
    tables = [torch.empty(a.table_mib << 8, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(a.tables)]
    for table in tables:
        for part in table.split(32 << 10):
            part.copy_(torch.arange(part.numel(), device="cuda", dtype=torch.int64).view_as(part) % 1021)
    sums = torch.zeros(a.rows, 2048, device="cuda", dtype=torch.float32)

    def step():
        for i in range(a.lookups):
            table = tables[i % len(tables)]
            index = torch.randint(table.shape[0], (a.rows,), device="cuda")
            sums.add_(table.index_select(0, index))
        return sums.sum()

    torch.cuda.synchronize()
    values, times, peak = [], [], 0
    for _ in range(a.steps):
        value, ms = timed_steps(torch, step, 1)
        values += value
        times += ms
        peak = max(peak, sum(on_card_bytes(table) for table in tables))
    result(values, torch.cuda.max_memory_allocated(), times, on_card_bytes=peak)


main()
