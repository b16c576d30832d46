"""Common to library_features.py and library_compute.py: sums of bits, tensors, models."""

import math
import sys

from common import result


def bits(*tensors):
    """Of each tensor a sum of its bits by place, exact and the same in any order. All elements must be finite."""
    import torch

    sums = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().flatten()
        if flat.is_complex():
            flat = torch.view_as_real(flat).flatten()
        if flat.is_floating_point() and not math.isfinite(float(flat.sum(dtype=torch.float64))):
            sys.exit("not a number among the values")
        flat = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        whole = flat.numel() // 4096 * 4096
        rows = flat[:whole].view(-1, 4096).sum(1, dtype=torch.int64)
        order = torch.arange(1, rows.numel() + 1, device=flat.device)
        sums.append(int((rows * order).sum() + flat[whole:].sum(dtype=torch.int64)))
    return sums


def finish(torch, values, **more):
    result(values, torch.cuda.max_memory_allocated(), **more)


def randn(torch, *shape, **options):
    return torch.randn(*shape, device="cuda", **options)


def deep(torch, layers, width, **options):
    """Linear layers with a nonlinearity between them."""
    parts = [torch.nn.Sequential(torch.nn.Linear(width, width, **options), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*parts)
