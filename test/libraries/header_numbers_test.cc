// The lists of hooklib/libraries against the headers: every name has the number that its list gives it, or this does
// not compile. abi_test.py checks that no name of the headers is missing.
#include <cudnn.h>
#include <library_types.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string_view>
#include <vector>

#include "hooklib/libraries/extents/graph.h"

namespace sluice::libraries {
namespace {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SLUICE_CUDNN_OPERATION(name, number, streaming) \
  static_assert(CUDNN_BACKEND_OPERATION_##name##_DESCRIPTOR == (number), #name);
#define SLUICE_CUDNN_ATTRIBUTE(operation, name, number, role) \
  static_assert(CUDNN_ATTR_OPERATION_##name == (number), #name);
#define SLUICE_CUDNN_DATA_TYPE(name, number, bits) static_assert(CUDNN_DATA_##name == (number), #name);
#include "hooklib/libraries/cudnn_attributes.def"
static_assert(static_cast<int>(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC) ==
              CudnnAttribute::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
#pragma GCC diagnostic pop
#define SLUICE_CUDA_DATA_TYPE(name, number, bits) static_assert(CUDA_##name == (number), #name);
#include "hooklib/libraries/cuda_data_types.def"

struct Row {
  std::string_view operation, name;
  AttributeRole role;
};
const std::vector<Row> kAttributes = {
#define SLUICE_CUDNN_ATTRIBUTE(operation, name, number, role) {#operation, #name, AttributeRole::role},
#include "hooklib/libraries/cudnn_attributes.def"
};
const std::vector<std::string_view> kOperations = {
#define SLUICE_CUDNN_OPERATION(name, number, streaming) #name,
#include "hooklib/libraries/cudnn_attributes.def"
};

bool IsWritten(AttributeRole role) { return role == AttributeRole::kOutput || role == AttributeRole::kPartialOutput; }

TEST_CASE("every operation of cuDNN's graphs has an output, and every attribute has an operation") {
  for (const std::string_view operation : kOperations) {
    INFO(operation);
    CHECK(std::any_of(kAttributes.begin(), kAttributes.end(),
                      [&](const Row& row) { return row.operation == operation && IsWritten(row.role); }));
  }
  for (const Row& row : kAttributes) {
    INFO(row.name);
    CHECK(std::find(kOperations.begin(), kOperations.end(), row.operation) != kOperations.end());
  }
}

TEST_CASE("attributes of a later cuDNN are read and written, and its operations are unknown") {
  constexpr int kLaterOperation = 63;
  CHECK(RoleOf(99999) == AttributeRole::kUnknown);
  const OperandUse use = UseOf(99999, false);
  CHECK((use.read && use.written && use.in_part));
  CHECK_FALSE(IsKnownOperation(kLaterOperation));
  CHECK_FALSE(IsKnownOperation(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  CHECK_FALSE(Streams(kLaterOperation));
}

}  // namespace
}  // namespace sluice::libraries
