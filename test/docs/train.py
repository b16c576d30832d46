"""A user's program, as small as one can be: one context, 64 MiB, on whatever libcuda the loader finds."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: {status}")


device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64 << 20))
call("cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(64 << 20))
call("cuCtxSynchronize")
call("cuMemFree_v2", memory)
