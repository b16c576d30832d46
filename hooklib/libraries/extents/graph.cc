#include "hooklib/libraries/extents/graph.h"

#include <algorithm>

namespace sluice::libraries {

AttributeRole RoleOf(int attribute) {
  switch (attribute) {
    case CudnnAttribute::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC:
      return AttributeRole::kInput;
#define SLUICE_CUDNN_ATTRIBUTE(operation, name, number, role) \
  case CudnnAttribute::CUDNN_ATTR_OPERATION_##name:           \
    return AttributeRole::role;
#include "hooklib/libraries/cudnn_attributes.def"
    default:
      return AttributeRole::kUnknown;
  }
}

OperandUse UseOf(int attribute, bool inference) {
  switch (RoleOf(attribute)) {
    case AttributeRole::kInput:
    case AttributeRole::kSize:
      return {.read = true};
    case AttributeRole::kOutput:
      return {.written = true};
    case AttributeRole::kPartialOutput:
      return {.written = true, .in_part = true};
    case AttributeRole::kStatistic:
      return inference ? OperandUse{.read = true} : OperandUse{.written = true};
    case AttributeRole::kShared:
    case AttributeRole::kBeta:
    case AttributeRole::kPhase:
    case AttributeRole::kSetting:
    case AttributeRole::kUnknown:
      break;
  }
  return {.read = true, .written = true, .in_part = true};
}

bool IsKnownOperation(int descriptor_type) {
  switch (descriptor_type) {
#define SLUICE_CUDNN_OPERATION(name, number, streaming) case number:
#include "hooklib/libraries/cudnn_attributes.def"
    return true;
    default:
      return false;
  }
}

bool Streams(int descriptor_type) {
  switch (descriptor_type) {
#define SLUICE_CUDNN_OPERATION(name, number, streaming) \
  case number:                                          \
    return streaming;
#include "hooklib/libraries/cudnn_attributes.def"
    default:
      return false;
  }
}

void OperationGraph::Add(const GraphTensor& tensor, OperandUse use) {
  Entry& entry = tensors_[tensor.id];
  entry.tensor = tensor;
  entry.use.read |= use.read;
  entry.use.written |= use.written;
  entry.use.in_part |= use.in_part;
}

void Describe(const OperationGraph* graph, const VariantPack& pack, uint64_t workspace_bytes, AccessSet* set) {
  if (pack.ids.size() != pack.pointers.size()) set->MarkUnknown(UnknownReason::kUnsupported);
  if (!graph) set->MarkUnknown(UnknownReason::kDescriptor);
  if (graph && graph->streaming()) set->MarkStreaming();
  const size_t count = std::min(pack.ids.size(), pack.pointers.size());
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t pointer = pack.pointers[i];
    const auto it = graph ? graph->tensors_.find(pack.ids[i]) : decltype(graph->tensors_.end()){};
    if (!graph || it == graph->tensors_.end()) {
      // Not a tensor of the graph (a seed, for instance), or the graph is not known.
      set->AddUnbounded(pointer, Use::kUpdate);
      continue;
    }
    const auto& [tensor, use] = it->second;
    if (tensor.is_virtual || tensor.by_value) continue;
    ++found;
    const Use how = !use.written ? Use::kRead : use.read ? Use::kUpdate : use.in_part ? Use::kWrite : Use::kOverwrite;
    if (tensor.ragged) {
      set->AddUnbounded(pointer, how == Use::kOverwrite ? Use::kWrite : how);
    } else {
      AddTensor(pointer, tensor.tensor, how, set);
    }
  }
  if (graph) {
    size_t needed = 0;
    for (const auto& [id, entry] : graph->tensors_) needed += !entry.tensor.is_virtual && !entry.tensor.by_value;
    if (found < needed) set->MarkUnknown(UnknownReason::kNullOperand);
  }
  if (workspace_bytes) set->AddOptional(Region::Bytes(pack.workspace, workspace_bytes), Use::kScratch);
}

}  // namespace sluice::libraries
