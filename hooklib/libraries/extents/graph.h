// What a cuDNN execution plan touches: the tensors of its operation graph by their unique ids, met at each execution by
// the pointers of a variant pack.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_

#include <map>
#include <span>

#include "hooklib/libraries/extents/tensor.h"

namespace sluice::libraries {

struct GraphTensor {
  int64_t id = 0;
  Tensor tensor;
  bool is_virtual = false;  // lives inside the kernels: no memory
  bool by_value = false;    // its pointer is the host's
  bool ragged = false;      // rows begin where another tensor says: how far it reaches is not known
};

// How an operation uses a tensor: by the attribute that names it (CUDNN_ATTR_OPERATION_*). What is not known is read
// and written: that something is only read, duplicates of it rely on.
struct OperandUse {
  bool read = false, written = false;
  bool in_part = false;  // written, but some of it may be left as it is
};
// A matmul's sizes come from the card: nothing in its graph is proven to be written whole.
bool OverridesSizes(int attribute);
OperandUse UseOf(int attribute, bool inference);
// Operations of these descriptor types touch each byte about once (pointwise, reduction, normalisation, ...).
bool Streams(int descriptor_type);

class OperationGraph {
 public:
  void Add(const GraphTensor& tensor, OperandUse use);
  void set_streaming(bool streaming) { streaming_ = streaming; }
  bool streaming() const { return streaming_; }
  size_t size() const { return tensors_.size(); }

 private:
  struct Entry {
    GraphTensor tensor;
    OperandUse use;
  };
  std::map<int64_t, Entry> tensors_;
  bool streaming_ = false;
  friend void Describe(const OperationGraph*, const struct VariantPack&, uint64_t, AccessSet*);
};

struct VariantPack {
  std::span<const int64_t> ids;
  std::span<const uint64_t> pointers;
  uint64_t workspace = 0;
};
// `graph` null: the plan's tensors are not known (a plan from a string that this process did not make); its pointers
// are then of unknown reach.
void Describe(const OperationGraph* graph, const VariantPack& pack, uint64_t workspace_bytes, AccessSet* set);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_
