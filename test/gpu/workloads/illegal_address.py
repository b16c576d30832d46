"""A program whose kernel writes to an illegal address: prints the error of the next synchronisation, exit status 7."""

import ctypes
import sys

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry stray()
{
  .reg .b64 %a;
  .reg .b32 %v;
  mov.u64 %a, 16;
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
"""


def main():
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: {code}")

    call("cuInit", 0)
    context, module, kernel, block = (ctypes.c_void_p() for _ in range(4))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(256 << 20))
    call("cuMemsetD8_v2", block, ctypes.c_ubyte(1), ctypes.c_size_t(256 << 20))
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"stray")
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    code = cuda.cuCtxSynchronize()
    print(f"cuCtxSynchronize: {code}", flush=True)
    sys.exit(7 if code == 700 else 1)


main()
