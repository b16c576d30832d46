"""Attention over pages in plain PyTorch, to test serving_own.py without a GPU."""


class PagedAttention:
    def __init__(self, torch, *_):
        self.torch = torch

    def __call__(self, q, keys, values, table, positions, page, out):
        rows, heads, width = q.shape
        group = heads // keys.shape[1]
        for row in range(rows):
            at = self.torch.arange(int(positions[row]) + 1)
            slots = table[row].long()[at // page] * page + at % page
            k, v = (t[slots].repeat_interleave(group, 1) for t in (keys, values))
            weight = self.torch.einsum("hd,thd->ht", q[row], k).mul(width**-0.5).softmax(-1)
            out[row] = self.torch.einsum("ht,thd->hd", weight, v)
        return out
