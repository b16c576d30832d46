// What is kept of graphs' nodes, since nobody can ask the driver for it later.
//
// What library calls said of the kernels that a capture took from them. A call's extents are known while it is made;
// its kernels run whenever the graph is launched, which was made from the capture, from a clone of that, or from a
// graph that has it as a child. So they are kept by the captured node, and believed of a node only as long as its
// kernel, shape and parameters are those of the capture. Of conditional nodes, which graphs are their bodies: the
// driver tells when it makes them.
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

// Behind a launch on a stream that is captured (the handle as the legacy-flavour functions take it): the thread's
// library call, if it is in one, belongs to the node that this made. Puts nothing into the stream.
void NoteCapturedLaunch(CUstream stream);
// Around the end of a capture: which graph it is; then, whether there is a graph, and its nodes say what they are.
CUgraph CapturedGraph(CUstream stream);
void SealCapture(CUgraph graph, bool ended_well);
// `copy` was made from `original`: by cloning, or as the graph of a child node.
void NoteGraphCopy(CUgraph original, CUgraph copy);
// The driver made a conditional node, whose bodies are filled from now on.
void NoteBodies(CUgraphNode node, const CUDA_CONDITIONAL_NODE_PARAMS& params);
// The graphs in a node: a child, or bodies. None where it is another kind of node, or nobody has seen how it was made.
std::vector<CUgraph> GraphsIn(CUgraphNode node);
// Before the driver destroys them.
void ForgetGraph(CUgraph graph);
void ForgetNode(CUgraphNode node);

CUDA_KERNEL_NODE_PARAMS_v2 Newer(const CUDA_KERNEL_NODE_PARAMS_v1& params);
// The parameters of a kernel node, by whichever function this driver has.
bool KernelParamsOf(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params);
CUfunction FunctionOf(const CUDA_KERNEL_NODE_PARAMS_v2& params);
// What is known of the node where it runs this; null: nothing, its parameters are all there is.
std::shared_ptr<const CapturedCall> CapturedCallOf(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& params);
// Nodes of which anything is kept.
size_t CapturedNodes();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_CAPTURED_CALLS_H_
