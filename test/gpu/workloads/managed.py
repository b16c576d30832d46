"""Managed memory as a PyTorch tensor, with the driver's advice and prefetch: for measurements without the hook."""

import ctypes
import sys

SET_PREFERRED_LOCATION, SET_ACCESSED_BY, HOST, CARD = 3, 5, -1, 0


class Managed:
    def __init__(self, torch, size):
        torch.zeros(1, device="cuda")  # PyTorch's context, which the driver's calls below then use
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.size = size
        pointer = ctypes.c_ulonglong()
        self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
        self.address = pointer.value
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }
        self.bytes = torch.as_tensor(self, device="cuda")
        assert self.bytes.data_ptr() == self.address, "PyTorch copied the buffer"

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            sys.exit(f"{sys.argv[0]}: {name}: CUDA error {code}")

    def advise(self, advice, device):
        self.call("cuMemAdvise", ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.size), advice, device)

    def prefetch(self, device, piece=None, stream=0):
        """Prefetches all of it, in calls of `piece` bytes."""
        piece = piece or self.size
        for at in range(0, self.size, piece):
            self.call(
                "cuMemPrefetchAsync",
                ctypes.c_ulonglong(self.address + at),
                ctypes.c_size_t(min(piece, self.size - at)),
                device,
                ctypes.c_void_p(stream),
            )
