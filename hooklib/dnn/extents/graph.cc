#include "hooklib/dnn/extents/graph.h"

#include <algorithm>

namespace sluice::dnn {

// Numbers of cudnnBackendAttributeName_t and cudnnBackendDescriptorType_t (cudnn_graph.h; test/dnn compares them).
bool OverridesSizes(int attribute) { return attribute >= 1525 && attribute <= 1527; }

OperandUse UseOf(int attribute, bool inference) {
  switch (attribute) {
    case 705:
    case 710:
    case 715:  // convolutions: y, dx, dw
    case 753:
    case 756:   // pointwise: y, dx
    case 1522:  // matmul: c
    case 1611:  // reduction: y
    case 2013:  // norm: y
    case 2109:  // norm backward: dx
      return {false, true};
    case 773:
    case 774:  // statistics: sum, sum of squares
    case 788:
    case 789:
    case 790:
    case 791:
    case 792:
    case 793:  // batch norm finalize: running, saved, equivalent
    case 1626:
    case 1627:
    case 1628:
    case 1629:
    case 1630:  // batch norm weights backward
    case 1711:
    case 1712:
    case 1720:  // resample: y, index; dx
    case 1803:
    case 1904:
    case 1951:  // concat; signal: y; paged cache: y
    case 2011:
    case 2012:  // norm: output running mean, variance
    case 2107:
    case 2108:  // norm backward: dscale, dbias
    case 2201:
    case 2251:
    case 2271:
    case 2310:  // reshape, band matrices, random numbers
    case 2501:
    case 2502:
    case 2602:  // block scale: y, scale; y
    case 2803:
    case 2804:                     // attention: o, stats
      return {false, true, true};  // short sequences, pages, places in what is there already: not proven
    case 1901:                     // signal: flag
      return {true, true};
    case 2003:
    case 2004:  // norm: mean, inverse variance
      return inference ? OperandUse{true, false} : OperandUse{false, true};
    default:
      return {true, false};
  }
}

bool Streams(int type) {
  switch (type) {
    case 13:
    case 14:
    case 20:
    case 22:
    case 23:  // pointwise, statistics, finalize, reduction, batch norm weights
    case 25:
    case 26:
    case 27:
    case 28:  // resample, concat, signal
    case 29:
    case 30:
    case 31:
    case 33:  // norms, reshape, random numbers
    case 35:
    case 36:
    case 37:
    case 39:
    case 40:  // paged cache, block scales, band matrices
      return true;
    default:  // convolutions, matmul, attention, and what is not known
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
  if (pack.ids.size() != pack.pointers.size()) set->Doubtful(Doubt::kStrange);
  if (!graph) set->Doubtful(Doubt::kDescriptor);
  if (graph && graph->streaming()) set->Streams();
  const size_t count = std::min(pack.ids.size(), pack.pointers.size());
  size_t met = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t pointer = pack.pointers[i];
    const auto it = graph ? graph->tensors_.find(pack.ids[i]) : decltype(graph->tensors_.end()){};
    if (!graph || it == graph->tensors_.end()) {
      // Not a tensor of the graph (a seed, say), or of a graph that is not known.
      set->Reach(pointer, Use::kUpdate);
      continue;
    }
    const auto& [tensor, use] = it->second;
    if (tensor.is_virtual || tensor.by_value) continue;
    ++met;
    const Use how = !use.written ? Use::kRead : use.read ? Use::kUpdate : use.in_part ? Use::kWrite : Use::kOverwrite;
    if (tensor.ragged) {
      set->Reach(pointer, how == Use::kOverwrite ? Use::kWrite : how);
    } else {
      AddTensor(pointer, tensor.tensor, how, set);
    }
  }
  if (graph) {
    size_t needed = 0;
    for (const auto& [id, entry] : graph->tensors_) needed += !entry.tensor.is_virtual && !entry.tensor.by_value;
    if (met < needed) set->Doubtful(Doubt::kNull);
  }
  if (workspace_bytes) set->AddOptional(Region::Bytes(pack.workspace, workspace_bytes), Use::kScratch);
}

}  // namespace sluice::dnn
