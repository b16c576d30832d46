// Kernel launches. The touched ranges come from the image and the arguments, or from simgpu_next_launch.
#include <algorithm>
#include <cstring>
#include <utility>

#include "array.h"

using simgpu::Op;
using simgpu::Sim;

namespace simgpu {
namespace {

bool Word(const std::vector<uint8_t>& params, const SimKernelInfo& info, int param, uint32_t offset, uint64_t* out) {
  const auto i = static_cast<size_t>(param);
  *out = 0;
  const uint32_t size = info.sizes[i];
  if (offset >= size) return false;
  std::memcpy(out, params.data() + info.offsets[i] + offset, std::min<uint32_t>(8, size - offset));
  return true;
}

}  // namespace

CUresult MakeKernelOp(CUfunction f, void** params, void** extra, const SimKernelCall* known, Op** out,
                      SimKernelCall* copy) {
  SimKernelInfo* info = KernelInfo(f);
  if (info == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ThreadState& thread = ThisState();
  const bool described = thread.described;
  std::vector<uint8_t>& bytes = thread.parameters;
  bytes.clear();
  if (known != nullptr) {
    bytes = known->params;
  } else if ((!described || copy != nullptr) && info->bytes != 0) {
    bytes.resize(info->bytes);
    if (params != nullptr) {
      for (size_t i = 0; i < info->sizes.size(); ++i) {
        if (params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(bytes.data() + info->offsets[i], params[i], info->sizes[i]);
      }
    } else if (extra != nullptr) {
      const void* buffer = nullptr;
      size_t size = 0;
      for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(extra[i + 1]);
      }
      if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(bytes.data(), buffer, std::min<size_t>(size, bytes.size()));
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  Simulator& sim = Sim();
  Op* op = sim.NewOp(OpKind::kKernel);
  op->name = info->name.c_str();
  op->duration = info->duration;
  op->seed = info->seed;
  if (described) {
    thread.described = false;
    op->touches.swap(thread.touches);
    op->duration = thread.duration;
    op->must_be_resident = (thread.flags & SIMGPU_MUST_BE_RESIDENT) != 0;
    op->kind_of_kernel = static_cast<simgpu_kernel>(thread.flags >> 8);
  } else if (!bytes.empty()) {
    for (const SimTouchSpec& t : info->touches) {
      uint64_t pointer = 0, length = t.length;
      Word(bytes, *info, t.param, t.param_offset, &pointer);
      if (t.indirect) {
        const uint64_t table = pointer;
        if (!sim.Mapped(table, 8) || !sim.ReadBytes(table, &pointer, 8)) pointer = 0;
        op->touches.push_back({table, 8, 1 | simgpu::kAddressOnly, 0});
      }
      if (t.length_param >= 0) {
        Word(bytes, *info, t.length_param, 0, &length);
        length *= t.length_scale;
      }
      if (t.object) {
        uint64_t bytes = 0;
        if (!FindObject(pointer, &pointer, &bytes)) return CUDA_ERROR_INVALID_HANDLE;
        length = t.offset < bytes ? std::min(length, bytes - t.offset) : 0;
      }
      if (length == 0) continue;
      op->touches.push_back({pointer + t.offset, length, t.access, 0});
      op->duration += static_cast<int64_t>(info->ns_per_kib * static_cast<double>(length) / 1024);
    }
    // Numbers among the arguments change the computed result. Pointers differ from run to run and do not.
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      const bool is_object = std::any_of(info->touches.begin(), info->touches.end(), [&](const SimTouchSpec& t) {
        return t.object && info->offsets[static_cast<size_t>(t.param)] == i;
      });
      op->seed = Mix(op->seed, is_object || sim.memory().InArena(word) ? 0 : word);
    }
  }
  if (copy != nullptr) {
    copy->params = bytes;
    copy->pointers.clear();
    for (size_t i = 0; i < info->sizes.size(); ++i) {
      copy->pointers.push_back(copy->params.size() >= info->bytes ? copy->params.data() + info->offsets[i] : nullptr);
    }
    copy->function = f->magic == kFunctionMagic ? f : nullptr;
    copy->kernel = f->magic == kKernelMagic ? reinterpret_cast<CUkernel>(f) : f->kernel;
    copy->sets = std::exchange(thread.sets, 0);
    copy->values = std::move(thread.values);
  }
  *out = op;
  return CUDA_SUCCESS;
}

}  // namespace simgpu

namespace {

struct Shape {
  unsigned gx, gy, gz, bx, by, bz, shared;
};

CUresult Launch(simgpu::Call& call, CUfunction f, const Shape& shape, CUstream stream, void** params, void** extra) {
  NEED_ARG(shape.gx != 0 && shape.gy != 0 && shape.gz != 0 && shape.bx != 0 && shape.by != 0 && shape.bz != 0);
  NEED_ARG(static_cast<uint64_t>(shape.bx) * shape.by * shape.bz <= 1024);
  Op* op = nullptr;
  if (!simgpu::Capturing(stream)) {
    const bool fails = simgpu::ThisState().described && (simgpu::ThisState().flags & SIMGPU_ILLEGAL_ADDRESS) != 0;
    if (const CUresult r = simgpu::MakeKernelOp(f, params, extra, nullptr, &op, nullptr); r != CUDA_SUCCESS) return r;
    const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!fails || r != CUDA_SUCCESS) return r;
    op = simgpu::Sim().NewOp(simgpu::OpKind::kAction);
    op->action = [](void*, uint64_t) { simgpu::TheDriver().sticky = CUDA_ERROR_ILLEGAL_ADDRESS; };
    return simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_KERNEL);
  }
  auto copy = std::make_shared<SimKernelCall>();
  if (const CUresult r = simgpu::MakeKernelOp(f, params, extra, nullptr, &op, copy.get()); r != CUDA_SUCCESS) return r;
  copy->grid[0] = shape.gx;
  copy->grid[1] = shape.gy;
  copy->grid[2] = shape.gz;
  copy->block[0] = shape.bx;
  copy->block[1] = shape.by;
  copy->block[2] = shape.bz;
  copy->shared = shape.shared;
  CUgraphNode node = nullptr;
  const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_KERNEL, &node);
  if (node != nullptr) node->kernel = std::move(copy);
  return r;
}

}  // namespace

#define LAUNCH_COST Sim().profile().launch_host_ns

ENTRY(cuLaunchKernel, _ptsz,
      (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
       unsigned int bz, unsigned int shared, CUstream s, void** params, void** extra),
      (f, gx, gy, gz, bx, by, bz, shared, s, params, extra)) {
  BEGIN(LAUNCH_COST);
  NEED_STREAM(s);
  return Launch(call, f, {gx, gy, gz, bx, by, bz, shared}, stream, params, extra);
}

ENTRY(cuLaunchCooperativeKernel, _ptsz,
      (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
       unsigned int bz, unsigned int shared, CUstream s, void** params),
      (f, gx, gy, gz, bx, by, bz, shared, s, params)) {
  BEGIN(LAUNCH_COST);
  NEED_STREAM(s);
  return Launch(call, f, {gx, gy, gz, bx, by, bz, shared}, stream, params, nullptr);
}

// Each on its stream's card. They start one after the other, which no program can observe here.
extern "C" CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count,
                                                         unsigned int flags) {
  constexpr bool kPerThread = false;
  BEGIN(LAUNCH_COST);
  NEED_ARG(list != nullptr && count != 0 && flags < 4);
  std::vector<int> cards;
  for (unsigned i = 0; i < count; ++i) {
    NEED_STREAM(list[i].hStream);
    NEED_ARG(list[i].hStream != nullptr && list[i].blockDimX == list[0].blockDimX);
    for (const int card : cards) NEED(card != stream->sim->card, CUDA_ERROR_INVALID_DEVICE);
    cards.push_back(stream->sim->card);
  }
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& p = list[i];
    NEED_STREAM(p.hStream);
    const CUresult r = Launch(
        call, p.function, {p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ, p.sharedMemBytes},
        stream, p.kernelParams, nullptr);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

ENTRY(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig* c, CUfunction f, void** params, void** extra),
      (c, f, params, extra)) {
  BEGIN(LAUNCH_COST);
  NEED_ARG(c != nullptr);
  NEED_STREAM(c->hStream);
  return Launch(call, f,
                {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes},
                stream, params, extra);
}

// The calls of CUDA 3: a function keeps its parameters and its block shape.
namespace {

CUresult SetParameter(CUfunction f, int offset, const void* value, size_t bytes) {
  NEED(simgpu::KernelInfo(f) != nullptr && f->magic == kFunctionMagic, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(offset >= 0 && value != nullptr);
  const size_t end = static_cast<size_t>(offset) + bytes;
  if (f->parameters.size() < end) f->parameters.resize(end);
  std::memcpy(f->parameters.data() + offset, value, bytes);
  return CUDA_SUCCESS;
}

CUresult LaunchOld(simgpu::Call& call, CUfunction f, int width, int height, CUstream stream) {
  NEED(simgpu::KernelInfo(f) != nullptr && f->magic == kFunctionMagic, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(width > 0 && height > 0);
  size_t bytes = f->parameters.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, f->parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const Shape shape = {
      static_cast<unsigned>(width), static_cast<unsigned>(height), 1, f->block[0], f->block[1], f->block[2], f->shared};
  return Launch(call, f, shape, stream, nullptr, extra);
}

}  // namespace

extern "C" {

CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
  BEGIN(500);
  NEED(simgpu::KernelInfo(f) != nullptr && f->magic == kFunctionMagic, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(x > 0 && y > 0 && z > 0);
  f->block[0] = static_cast<unsigned>(x);
  f->block[1] = static_cast<unsigned>(y);
  f->block[2] = static_cast<unsigned>(z);
  return CUDA_SUCCESS;
}
CUresult cuParamSetSize(CUfunction f, unsigned int bytes) {
  BEGIN(500);
  NEED(simgpu::KernelInfo(f) != nullptr && f->magic == kFunctionMagic, CUDA_ERROR_INVALID_HANDLE);
  f->parameters.resize(bytes);
  return CUDA_SUCCESS;
}
CUresult cuParamSeti(CUfunction f, int offset, unsigned int value) {
  BEGIN(500);
  return SetParameter(f, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction f, int offset, float value) {
  BEGIN(500);
  return SetParameter(f, offset, &value, sizeof value);
}
CUresult cuParamSetv(CUfunction f, int offset, void* value, unsigned int bytes) {
  BEGIN(500);
  return SetParameter(f, offset, value, bytes);
}
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s) {
  constexpr bool kPerThread = false;
  BEGIN(LAUNCH_COST);
  NEED_STREAM(s);
  return LaunchOld(call, f, width, height, stream);
}
CUresult cuLaunchGrid(CUfunction f, int width, int height) { return cuLaunchGridAsync(f, width, height, nullptr); }
CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }

}  // extern "C"
