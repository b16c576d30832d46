// Knowledge of graphs' nodes that the driver cannot be asked for later.
//
// Access sets of library calls. A call's extents are known while it is made, but its kernels run whenever the graph is
// launched. That graph was made from the capture, from a clone of it, or from a graph that has it as a child. So the
// set is kept by the captured node. It is used for a node only while its kernel, shape and parameters are those of the
// capture.
//
// Bodies of conditional nodes: the driver returns them when it makes the node.
//
// Thread-safe.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_CAPTURED_CALLS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_CAPTURED_CALLS_H_

#include <memory>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

struct CapturedCall {
  std::vector<LibraryRange> ranges;
  LibraryCall call;  // its ranges are those
};

// Behind a launch on a captured stream: the thread's library call, if it is in one, belongs to the node that the launch
// made. The handle is as the legacy-flavour functions take it. Puts nothing into the stream.
void NoteCapturedLaunch(CUstream stream);
// Before the end of a capture: its graph. After it: the kernels of its nodes are noted, or where it ended in error all
// its nodes are forgotten.
CUgraph CapturedGraph(CUstream stream);
void SealCapture(CUgraph graph, bool succeeded);
// `copy` was made from `original`: by cloning, or as the graph of a child node.
void NoteGraphCopy(CUgraph original, CUgraph copy);
// The driver made a conditional node, whose bodies the application fills from now on.
void NoteBodies(CUgraphNode node, const CUDA_CONDITIONAL_NODE_PARAMS& params);
// The graphs in a node: a child, or bodies. None: it is another kind of node, or was made by a call that the engine
// does not see.
std::vector<CUgraph> GraphsIn(CUgraphNode node);
// Call before the driver destroys them.
void ForgetGraph(CUgraph graph);
void ForgetNode(CUgraphNode node);

CUDA_KERNEL_NODE_PARAMS_v2 ToVersion2(const CUDA_KERNEL_NODE_PARAMS_v1& params);
// The parameters of a kernel node, by the newest function that this driver has.
bool KernelParamsOf(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params);
CUfunction FunctionOf(const CUDA_KERNEL_NODE_PARAMS_v2& params);
// The library call of the node, if it still runs the captured kernel; null: none is known.
std::shared_ptr<const CapturedCall> CapturedCallOf(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& params);
// Nodes for which a call is kept.
size_t CapturedNodes();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_CAPTURED_CALLS_H_
