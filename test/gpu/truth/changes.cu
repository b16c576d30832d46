// Compares the bytes that a launch touched with a copy of the earlier bytes, and updates the copy. One warp for each
// granule of 512 bytes: PyTorch's allocator rounds to that, so a granule is in one tensor. A granule's flags: 1, its
// bytes differ; 2, the earlier bytes were one repeated 32-bit word other than zero.
extern "C" __global__ void changes(const uint4* now, uint4* before, unsigned char* flags, unsigned long long granules) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned long long warps = (unsigned long long)gridDim.x * blockDim.x / 32;
  for (unsigned long long g = ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x) / 32; g < granules;
       g += warps) {
    const uint4 a = now[g * 32 + lane], b = before[g * 32 + lane];
    const bool differs = a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
    const unsigned word = __shfl_sync(0xffffffffu, b.x, 0);
    const bool filled = word != 0 && b.x == word && b.y == word && b.z == word && b.w == word;
    const bool changed = __any_sync(0xffffffffu, differs);
    const bool was_filled = __all_sync(0xffffffffu, filled);
    if (differs) before[g * 32 + lane] = a;
    if (lane == 0) flags[g] = (unsigned char)((changed ? 1 : 0) | (was_filled ? 2 : 0));
  }
}
