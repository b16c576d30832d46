#include "hooklib/libraries/extents/graph.h"

#include <algorithm>

namespace sluice::libraries {

// Numbers of cudnnBackendAttributeName_t and cudnnBackendDescriptorType_t (cudnn_graph.h; test/libraries compares
// them).
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
    case 2003:
    case 2004:  // norm: mean, inverse variance
      return inference ? OperandUse{true, false} : OperandUse{false, true};
    case 913:  // where a tensor's rows begin
    case 703:
    case 704:
    case 709:
    case 711:
    case 716:
    case 717:  // convolutions: w, x; w, dy; x, dy
    case 751:
    case 752:
    case 757:
    case 758:  // pointwise: x, b, dy, t
    case 772:  // statistics: x
    case 782:
    case 783:
    case 784:
    case 785:
    case 786:
    case 787:
    case 794:
    case 795:
    case 796:  // batch norm finalize: sums, scale, bias, previous, count, epsilon, factor
    case 1520:
    case 1521:
    case 1525:
    case 1526:
    case 1527:  // matmul: a, b, sizes
    case 1610:  // reduction: x
    case 1621:
    case 1622:
    case 1623:
    case 1624:
    case 1625:  // batch norm weights backward: mean, deviation, scale, x, dy
    case 1710:
    case 1721:
    case 1722:
    case 1726:
    case 1727:  // resample: x; dy, index, x, y
    case 1801:
    case 1903:
    case 1950:
    case 1952:
    case 1953:  // concat; signal: x; paged cache: container, lengths, table
    case 2002:
    case 2005:
    case 2006:
    case 2007:
    case 2008:
    case 2009:
    case 2010:  // norm: x, scale, bias, epsilon, factor, input running
    case 2101:
    case 2102:
    case 2103:
    case 2104:
    case 2105:
    case 2106:  // norm backward: x, mean, deviation, dy, scale, epsilon
    case 2200:
    case 2250:
    case 2256:
    case 2257:
    case 2270:
    case 2276:
    case 2311:
    case 2313:  // reshape, band matrices, random numbers: x, offsets, masks, seed
    case 2500:
    case 2600:
    case 2601:  // block scale: x; x, scale
    case 2800:
    case 2801:
    case 2802:
    case 2805:  // attention: q, k, v, scale
      return {true, false};
    default:  // flags and statistics that cards share; what a later cuDNN may bring
      return {true, true, true};
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
  if (pack.ids.size() != pack.pointers.size()) set->MarkUnknown(UnknownReason::kUnsupported);
  if (!graph) set->MarkUnknown(UnknownReason::kDescriptor);
  if (graph && graph->streaming()) set->MarkStreaming();
  const size_t count = std::min(pack.ids.size(), pack.pointers.size());
  size_t met = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t pointer = pack.pointers[i];
    const auto it = graph ? graph->tensors_.find(pack.ids[i]) : decltype(graph->tensors_.end()){};
    if (!graph || it == graph->tensors_.end()) {
      // Not a tensor of the graph (a seed, say), or of a graph that is not known.
      set->AddUnbounded(pointer, Use::kUpdate);
      continue;
    }
    const auto& [tensor, use] = it->second;
    if (tensor.is_virtual || tensor.by_value) continue;
    ++met;
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
    if (met < needed) set->MarkUnknown(UnknownReason::kNullOperand);
  }
  if (workspace_bytes) set->AddOptional(Region::Bytes(pack.workspace, workspace_bytes), Use::kScratch);
}

}  // namespace sluice::libraries
