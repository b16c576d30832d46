#!/bin/sh
# The libraries of older drivers: they do not export names that the drivers lack, and their own programs still run.
# Usage: driver_test.sh LIB-FOLDER CONTRACT-PROGRAM NM
set -eu
lib=$1 contract=$2 nm=$3
fail() { echo "$*" >&2; exit 1; }
has() { "$nm" -D --defined-only "$lib/$1/libcuda.so.1" | grep -q " T $2\$"; }
for f in simgpu simgpu-550 simgpu-535; do
  has $f cuMemAlloc_v2 || fail "$f lacks cuMemAlloc_v2"
  has $f cuLaunchKernel_ptsz || fail "$f lacks cuLaunchKernel_ptsz"
  # Not in cuda.h, and in every driver.
  for name in cuProfilerInitialize cuProfilerStart cuGLGetDevices_v2 cuCtxCreate cuMemAlloc; do
    has $f $name || fail "$f lacks $name"
  done
  answer=$(python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuProfilerInitialize(None, None, 0))' \
    "$lib/$f/libcuda.so.1")
  [ "$answer" = 801 ] || fail "$f: cuProfilerInitialize answers $answer, not CUDA_ERROR_NOT_SUPPORTED (801)"
  has $f simgpu_next_launch || fail "$f lacks the side channel"
done
has simgpu cuMemDiscardBatchAsync || fail "580 lacks cuMemDiscardBatchAsync"
for f in simgpu-550 simgpu-535; do
  if has $f cuMemDiscardBatchAsync; then fail "$f exports cuMemDiscardBatchAsync"; fi
done
has simgpu-550 cuFuncGetParamInfo || fail "550 lacks cuFuncGetParamInfo"
if has simgpu-535 cuFuncGetParamInfo; then fail "535 exports cuFuncGetParamInfo"; fi
for f in simgpu-550 simgpu-535; do
  # The program was linked against 580's names, lazily: these cases use only names that exist everywhere.
  LD_LIBRARY_PATH="$lib/$f" "$contract" "bytes come back*,wrong arguments*,host functions*,a captured graph*" >/dev/null ||
    fail "the contract does not hold under $f"
done
