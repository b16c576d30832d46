// The access set of a cuDNN execution plan: the tensors of its operation graph by their unique ids, joined at each
// execution with the pointers of a variant pack.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_

#include <map>
#include <span>

#include "hooklib/libraries/extents/tensor.h"

namespace sluice::libraries {

struct GraphTensor {
  int64_t id = 0;
  Tensor tensor;
  bool is_virtual = false;  // exists inside the kernels only: no memory
  bool by_value = false;    // its pointer is the host's
  bool ragged = false;      // rows begin where another tensor says: how far it reaches is not known
};

// Names and numbers of cudnn_attributes.def, without cuDNN's header. Named as cuDNN names them.
struct CudnnAttribute {
  enum : int {
    CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC = 913,
#define SLUICE_CUDNN_ATTRIBUTE(operation, name, number, role) CUDNN_ATTR_OPERATION_##name = (number),
#include "hooklib/libraries/cudnn_attributes.def"
  };
};

// The role of an attribute; cudnn_attributes.def explains each.
enum class AttributeRole : uint8_t {
  kInput,
  kOutput,
  kPartialOutput,
  kStatistic,
  kSize,
  kShared,
  kBeta,
  kPhase,
  kSetting,
  kUnknown  // of a later cuDNN
};
AttributeRole RoleOf(int attribute);

// How an operation uses a tensor. Where the direction is not known, the tensor counts as read and written: read-mostly
// duplicates rely on memory that is only read.
struct OperandUse {
  bool read = false, written = false;
  bool in_part = false;  // written, but some of it may be left as it is
};
// The use of a tensor under this attribute. `inference`: the phase of a norm.
OperandUse UseOf(int attribute, bool inference);

// Whether cudnn_attributes.def has this cudnnBackendDescriptorType_t as an operation.
bool IsKnownOperation(int descriptor_type);
// Whether such an operation touches each byte about once (pointwise, reduction, normalisation). False for unknown ones.
bool Streams(int descriptor_type);

// The tensors of a graph and how its operations use them. Not thread-safe.
class OperationGraph {
 public:
  // A tensor that several operations name has all their uses.
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
// Adds the ranges that one execution touches. `graph` null: the plan's tensors are not known (a plan from a string that
// this process did not write); its pointers then have an unknown reach.
void Describe(const OperationGraph* graph, const VariantPack& pack, uint64_t workspace_bytes, AccessSet* set);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_GRAPH_H_
