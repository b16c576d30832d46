// cuDNN's backend (graph) API. Descriptors cannot be read back: a plan does not tell its tensors, a variant pack not
// its pointers (9.13 answers NOT_SUPPORTED), and asking one that was destroyed crashes. So what is set is kept here, by
// descriptor.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/extents/graph.h"

namespace sluice::libraries {

namespace {

struct Operand {
  int attribute;
  GraphTensor tensor;
};

// One descriptor: what was set on it, as far as it matters.
struct Node {
  int type = 0;
  GraphTensor tensor;
  std::vector<Operand> operands;  // an operation's tensors, as they were when it was told of them
  bool adds_to_result = false;    // a convolution whose beta is not zero
  bool inference = false;
  std::shared_ptr<const OperationGraph> graph;  // of a graph, and of everything made from one
  uint64_t workspace_bytes = 0;
  std::vector<int64_t> ids;  // of a variant pack
  std::vector<uint64_t> pointers;
  uint64_t workspace = 0;
  bool strange = false;  // it has attributes that we do not know
};
using Handle = cudnnBackendDescriptor_t;

// Plans are made seldom; an execution takes the lock a few times for the moment of a look-up.
struct Book {
  std::mutex mutex;
  std::unordered_map<Handle, std::shared_ptr<Node>> nodes;
  std::unordered_map<uint64_t, std::shared_ptr<const OperationGraph>> strings;  // plans written as text, by hash
};
Book& TheBook() {
  static auto& book = *new Book();
  return book;
}

std::shared_ptr<Node> Find(Handle handle) {
  Book& book = TheBook();
  std::lock_guard lock(book.mutex);
  const auto it = book.nodes.find(handle);
  return it == book.nodes.end() ? nullptr : it->second;
}

bool Wanted() { return g_library_calls_wanted.load(std::memory_order_relaxed); }
std::atomic<bool> g_packs{false};  // some are followed: what is put into them counts, whether sets are wanted or not
bool OfPack(int attribute) { return attribute >= 1000 && attribute < 1100; }

uint64_t HashOf(const void* text, int64_t length) {
  const auto* at = static_cast<const unsigned char*>(text);
  while (length > 0 && at[length - 1] == 0) --length;  // with or without its end
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
      node->strange = true;  // shapes given at execution, say
  }
}

// The graph of some operations; null where one was not seen being made, or is of a kind that we do not know.
std::shared_ptr<const OperationGraph> Build(std::span<const Handle> operations) {
  auto graph = std::make_shared<OperationGraph>();
  bool streams = true, in_part = false;
  for (const Handle handle : operations) {
    const auto node = Find(handle);
    if (!node) return nullptr;
    for (const Operand& operand : node->operands) in_part |= OverridesSizes(operand.attribute);
  }
  for (const Handle handle : operations) {
    const auto node = Find(handle);
    if (!node || node->type > CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR) return nullptr;
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

// Beta of the three convolutions: float or double, on the host.
bool NotZero(cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  if (count != 1) return true;
  if (type == CUDNN_TYPE_FLOAT) return *static_cast<const float*>(at) != 0;
  if (type == CUDNN_TYPE_DOUBLE) return *static_cast<const double*>(at) != 0;
  return true;
}

// After the library took it.
void Keep(Handle handle, int attribute, cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  const auto node = Find(handle);
  if (!node || !at || count < 0) return;
  if (node->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    if (count > 0) SetTensor(node.get(), attribute, count, at);
  } else if (node->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    SetPack(node.get(), attribute, count, at);
  } else if (attribute == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
    Book& book = TheBook();
    const uint64_t hash = HashOf(at, count);
    std::lock_guard lock(book.mutex);
    const auto it = book.strings.find(hash);
    node->graph = it == book.strings.end() ? nullptr : it->second;
  } else if (attribute == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA ||
             attribute == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA ||
             attribute == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA) {
    node->adds_to_result = NotZero(type, count, at);
  } else if (attribute == CUDNN_ATTR_OPERATION_NORM_FWD_PHASE) {
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
  const bool passed = type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR && !Wanted();  // made anew for each execution
  const cudnnStatus_t status = real(type, out);
  if (passed || status != CUDNN_STATUS_SUCCESS || !out) return status;
  try {
    auto node = std::make_shared<Node>();
    node->type = type;
    if (type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) g_packs.store(true, std::memory_order_relaxed);
    Book& book = TheBook();
    std::lock_guard lock(book.mutex);
    book.nodes[*out] = std::move(node);
  } catch (...) {
    return status;  // no host memory: not seen, then
  }
  return status;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(Handle handle) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendDestroyDescriptor)>(LibraryReal());
  std::shared_ptr<Node> gone;  // freed without the lock
  {
    Book& book = TheBook();
    std::lock_guard lock(book.mutex);
    if (const auto it = book.nodes.find(handle); it != book.nodes.end()) {
      gone = std::move(it->second);
      book.nodes.erase(it);
    }
  }
  return real(handle);
}

cudnnStatus_t cudnnBackendSetAttribute(Handle handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* at) {
  auto* const real = reinterpret_cast<decltype(&::cudnnBackendSetAttribute)>(LibraryReal());
  if (OfPack(name) && !Wanted() && !g_packs.load(std::memory_order_relaxed)) return real(handle, name, type, count, at);
  const cudnnStatus_t status = real(handle, name, type, count, at);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  try {
    Keep(handle, name, type, count, at);
  } catch (...) {
    return status;  // no host memory: not known, then
  }
  return status;
}

// Configurations come out of heuristics, engines out of configurations, a text out of a plan: each keeps its graph.
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
      Book& book = TheBook();
      const uint64_t hash = HashOf(at, got);
      std::lock_guard lock(book.mutex);
      book.strings[hash] = node->graph;
      return status;
    }
    for (const Handle child : std::span(static_cast<Handle*>(at), static_cast<std::size_t>(got))) {
      if (const auto other = Find(child)) other->graph = node->graph;
    }
  } catch (...) {
    return status;  // no host memory: not known, then
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
      Copy{reinterpret_cast<void*>(real)}.Find<decltype(::cudnnBackendGetAttribute)>("cudnnBackendGetAttribute");
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
      [&](const Copy&, AccessSet* set) {
        const auto plan_node = Find(plan), pack_node = Find(pack);
        if (!pack_node || pack_node->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !plan_node ||
            plan_node->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
          return set->MarkUnknown(UnknownReason::kDescriptor);
        }
        if (pack_node->strange) set->MarkUnknown(UnknownReason::kUnsupported);
        Describe(plan_node->graph.get(), {pack_node->ids, pack_node->pointers, pack_node->workspace},
                 plan_node->workspace_bytes, set);
      },
      handle, plan, pack);
}

}  // namespace entry
}  // namespace sluice::libraries
