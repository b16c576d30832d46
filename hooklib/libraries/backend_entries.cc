// cuDNN's backend (graph) API. Its descriptors cannot be read back. A plan does not name its tensors, and a variant
// pack does not return its pointers (9.13 answers NOT_SUPPORTED). Asking a destroyed descriptor crashes. So the
// attributes that a program sets are kept here, by descriptor.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/extents/graph.h"

namespace sluice::libraries {

namespace {

struct Operand {
  int attribute;
  GraphTensor tensor;
};

// One descriptor, with the attributes that access sets need.
struct Node {
  int type = 0;
  GraphTensor tensor;
  std::vector<Operand> operands;  // an operation's tensors, as they were when they were set
  bool adds_to_result = false;    // a convolution whose beta is not zero
  bool inference = false;
  std::shared_ptr<const OperationGraph> graph;  // of a graph descriptor, and of every descriptor made from one
  uint64_t workspace_bytes = 0;
  std::vector<int64_t> ids;  // of a variant pack
  std::vector<uint64_t> pointers;
  uint64_t workspace = 0;
  bool has_unknown_attributes = false;
};
using Handle = cudnnBackendDescriptor_t;

// Plans are made seldom. An execution takes the lock a few times, each for one look-up.
struct Registry {
  Mutex mutex;  // no other lock is taken inside
  std::unordered_map<Handle, std::shared_ptr<Node>> nodes SLUICE_GUARDED_BY(mutex);
  // Plans written as text, by hash.
  std::unordered_map<uint64_t, std::shared_ptr<const OperationGraph>> strings SLUICE_GUARDED_BY(mutex);
};
Registry& TheRegistry() {
  static auto& registry = *new Registry();
  return registry;
}

std::shared_ptr<Node> Find(Handle handle) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  const auto it = registry.nodes.find(handle);
  return it == registry.nodes.end() ? nullptr : it->second;
}

bool Wanted() { return g_library_calls_wanted.load(std::memory_order_relaxed); }
// Some variant packs are kept: then their attributes are kept as well, whether sets are wanted now or not.
std::atomic<bool> g_has_packs{false};
bool IsPackAttribute(int attribute) { return attribute >= 1000 && attribute < 1100; }

uint64_t HashOf(const void* text, int64_t length) {
  const auto* at = static_cast<const unsigned char*>(text);
  while (length > 0 && at[length - 1] == 0) --length;  // callers count the final NUL or do not
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < length; ++i) hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash;
}

std::span<const int64_t> Numbers(const void* at, int64_t count) {
  return {static_cast<const int64_t*>(at), static_cast<std::size_t>(count)};
}

void SetTensor(Node* node, int attribute, int64_t count, const void* at) {
  GraphTensor& t = node->tensor;
  const int64_t rank = std::min<int64_t>(count, Tensor::kMaxRank);
  switch (attribute) {
    case CUDNN_ATTR_TENSOR_DATA_TYPE: {
      const auto type = *static_cast<const cudnnDataType_t*>(at);
      t.tensor.bits = TensorBits(type);
      t.tensor.exact = type != CUDNN_DATA_BOOLEAN;
      break;
    }
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
      t.tensor.rank = count > Tensor::kMaxRank ? -1 : static_cast<int>(rank);
      std::copy_n(static_cast<const int64_t*>(at), rank, t.tensor.dims.begin());
      break;
    case CUDNN_ATTR_TENSOR_STRIDES:
      std::copy_n(static_cast<const int64_t*>(at), rank, t.tensor.strides.begin());
      break;
    case CUDNN_ATTR_TENSOR_VECTOR_COUNT:
      t.tensor.vector = *static_cast<const int64_t*>(at);
      break;
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
      t.id = *static_cast<const int64_t*>(at);
      break;
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL:
      t.is_virtual = *static_cast<const bool*>(at);
      break;
    case CUDNN_ATTR_TENSOR_IS_BY_VALUE:
      t.by_value = *static_cast<const bool*>(at);
      break;
    case CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC: {
      t.ragged = true;
      for (const Handle offsets : std::span(static_cast<const Handle*>(at), static_cast<std::size_t>(count))) {
        if (const auto other = Find(offsets)) node->operands.push_back({attribute, other->tensor});
      }
      break;
    }
    default:
      break;
  }
}

void SetPack(Node* node, int attribute, int64_t count, const void* at) {
  switch (attribute) {
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: {
      const auto ids = Numbers(at, count);
      node->ids.assign(ids.begin(), ids.end());
      break;
    }
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: {
      const auto pointers = Numbers(at, count);
      node->pointers.assign(pointers.begin(), pointers.end());
      break;
    }
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
      node->workspace = count > 0 ? Address(*static_cast<void* const*>(at)) : 0;
      break;
    default:
      node->has_unknown_attributes = true;  // for instance shapes that are given at execution
  }
}

// The graph of some operations. Null where the creation of one was not seen, or its type is not known.
std::shared_ptr<const OperationGraph> Build(std::span<const Handle> operations) {
  auto graph = std::make_shared<OperationGraph>();
  bool streams = true, in_part = false;
  for (const Handle handle : operations) {
    const auto node = Find(handle);
    if (!node) return nullptr;
    for (const Operand& operand : node->operands) in_part |= RoleOf(operand.attribute) == AttributeRole::kSize;
  }
  for (const Handle handle : operations) {
    const auto node = Find(handle);
    if (!node || !IsKnownOperation(node->type)) return nullptr;
    streams &= Streams(node->type);
    for (const Operand& operand : node->operands) {
      OperandUse use = UseOf(operand.attribute, node->inference);
      if (use.written && node->adds_to_result) use.read = true;
      use.in_part |= in_part;
      graph->Add(operand.tensor, use);
    }
  }
  graph->set_streaming(streams);
  return graph;
}

// A convolution's beta: float or double, on the host.
bool IsNotZero(cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  if (count != 1) return true;
  if (type == CUDNN_TYPE_FLOAT) return *static_cast<const float*>(at) != 0;
  if (type == CUDNN_TYPE_DOUBLE) return *static_cast<const double*>(at) != 0;
  return true;
}

// Keeps an attribute that the library has accepted.
void Keep(Handle handle, int attribute, cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  const auto node = Find(handle);
  if (!node || !at || count < 0) return;
  if (node->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    if (count > 0) SetTensor(node.get(), attribute, count, at);
  } else if (node->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    SetPack(node.get(), attribute, count, at);
  } else if (attribute == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
    Registry& registry = TheRegistry();
    const uint64_t hash = HashOf(at, count);
    MutexLock lock(registry.mutex);
    const auto it = registry.strings.find(hash);
    node->graph = it == registry.strings.end() ? nullptr : it->second;
  } else if (RoleOf(attribute) == AttributeRole::kBeta) {
    node->adds_to_result = IsNotZero(type, count, at);
  } else if (RoleOf(attribute) == AttributeRole::kPhase) {
    node->inference = count == 1 && *static_cast<const cudnnBackendNormFwdPhase_t*>(at) == CUDNN_NORM_FWD_INFERENCE;
  } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const std::span others(static_cast<const Handle*>(at), static_cast<std::size_t>(count));
    if (node->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
      node->graph = Build(others);
      return;
    }
    std::erase_if(node->operands, [&](const Operand& operand) { return operand.attribute == attribute; });
    for (const Handle other_handle : others) {
      const auto other = Find(other_handle);
      if (!other) continue;
      if (other->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        node->operands.push_back({attribute, other->tensor});
        for (const Operand& offsets : other->operands) node->operands.push_back(offsets);
      } else if (other->graph) {
        node->graph = other->graph;
      }
    }
  }
}

}  // namespace

namespace entry {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, Handle* out) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendCreateDescriptor)>(LibraryReal());
  // Programs make a variant pack for each execution, so packs are kept only while sets are wanted.
  const bool passed = type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR && !Wanted();
  const cudnnStatus_t status = real(type, out);
  if (passed || status != CUDNN_STATUS_SUCCESS || !out) return status;
  try {
    auto node = std::make_shared<Node>();
    node->type = type;
    if (type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) g_has_packs.store(true, std::memory_order_relaxed);
    Registry& registry = TheRegistry();
    MutexLock lock(registry.mutex);
    registry.nodes[*out] = std::move(node);
  } catch (...) {
    return status;  // out of host memory: as if its creation had not been seen
  }
  return status;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(Handle handle) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendDestroyDescriptor)>(LibraryReal());
  std::shared_ptr<Node> removed;  // freed without the lock
  {
    Registry& registry = TheRegistry();
    MutexLock lock(registry.mutex);
    if (const auto it = registry.nodes.find(handle); it != registry.nodes.end()) {
      removed = std::move(it->second);
      registry.nodes.erase(it);
    }
  }
  return real(handle);
}

cudnnStatus_t cudnnBackendSetAttribute(Handle handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendSetAttribute)>(LibraryReal());
  if (IsPackAttribute(name) && !Wanted() && !g_has_packs.load(std::memory_order_relaxed))
    return real(handle, name, type, count, at);
  const cudnnStatus_t status = real(handle, name, type, count, at);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  try {
    Keep(handle, name, type, count, at);
  } catch (...) {
    return status;  // out of host memory: its graph stays unknown
  }
  return status;
}

// Heuristics return configurations, configurations return engines, a plan returns a text: each keeps its graph.
cudnnStatus_t cudnnBackendGetAttribute(Handle handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t* count, void* at) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendGetAttribute)>(LibraryReal());
  const cudnnStatus_t status = real(handle, name, type, room, count, at);
  const bool text = name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
  if (status != CUDNN_STATUS_SUCCESS || !at || room <= 0 || (type != CUDNN_TYPE_BACKEND_DESCRIPTOR && !text))
    return status;
  const int64_t got = count ? std::min(room, *count) : room;
  const auto node = Find(handle);
  if (!node || !node->graph || got <= 0) return status;
  try {
    if (text) {
      Registry& registry = TheRegistry();
      const uint64_t hash = HashOf(at, got);
      MutexLock lock(registry.mutex);
      registry.strings[hash] = node->graph;
      return status;
    }
    for (const Handle child : std::span(static_cast<Handle*>(at), static_cast<std::size_t>(got))) {
      if (const auto other = Find(child)) other->graph = node->graph;
    }
  } catch (...) {
    return status;  // out of host memory: its graph stays unknown
  }
  return status;
}

cudnnStatus_t cudnnBackendFinalize(Handle handle) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendFinalize)>(LibraryReal());
  const cudnnStatus_t status = real(handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const auto node = Find(handle);
  if (!node || node->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return status;
  auto* const get =
      LibraryCopy{reinterpret_cast<void*>(real)}.Find<decltype(::cudnnBackendGetAttribute)>("cudnnBackendGetAttribute");
  int64_t bytes = 0, count = 0;
  if (get &&
      get(handle, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes) ==
          CUDNN_STATUS_SUCCESS &&
      bytes > 0) {
    node->workspace_bytes = static_cast<uint64_t>(bytes);
  }
  return status;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, Handle plan, Handle pack) {
  return Forward<cudnnStatus_t>(
      "cudnnBackendExecute",
      [&](const LibraryCopy&, AccessSet* set) {
        const auto plan_node = Find(plan), pack_node = Find(pack);
        if (!pack_node || pack_node->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !plan_node ||
            plan_node->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
          return set->MarkUnknown(UnknownReason::kDescriptor);
        }
        if (pack_node->has_unknown_attributes) set->MarkUnknown(UnknownReason::kUnsupported);
        Describe(plan_node->graph.get(), {pack_node->ids, pack_node->pointers, pack_node->workspace},
                 plan_node->workspace_bytes, set);
      },
      handle, plan, pack);
}

}  // namespace entry
}  // namespace sluice::libraries
