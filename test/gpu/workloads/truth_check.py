"""Touches known pages, with which the truth column is compared: record_traces runs it before the recordings."""

import ctypes

from common import result, seeded_torch

MIB = 1 << 20


def main():
    torch = seeded_torch()
    torch.use_deterministic_algorithms(False)  # deterministic mode fills the tensors that torch.empty returns
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    y = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    x.fill_(0)
    y.fill_(0)
    torch.cuda.synchronize()
    step = ctypes.CDLL(None).sluice_truth_step
    step(b"slow")
    x[20 * MIB : 28 * MIB].fill_(1)  # dense, whole blocks of the driver
    x[40 * MIB + 512 * 1024 : 42 * MIB].fill_(1)  # dense, three quarters of one
    y[MIB : MIB + 4096].fill_(1)  # one page
    y[8 * MIB : 24 * MIB : 256 * 1024].fill_(1)  # a byte in every fourth page of 64 KiB
    x[20 * MIB : 28 * MIB].fill_(2)  # the first range again: the same truth
    y[48 * MIB : 50 * MIB].copy_(x[48 * MIB : 50 * MIB])
    y[56 * MIB : 58 * MIB].random_()
    y[56 * MIB : 58 * MIB].add_(1)  # changed; the second fill above: overwritten; the copy's source: neither
    torch.cuda.synchronize()
    result([int(x[20 * MIB]), int(y[MIB])], torch.cuda.max_memory_allocated())


main()
