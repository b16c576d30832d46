// The text of a simulated module, which README.md describes, and the functions of modules.
#ifndef SIMGPU_API_IMAGE_H_
#define SIMGPU_API_IMAGE_H_

#include <memory>
#include <string>

#include "handles.h"

namespace simgpu {

// Parses `text`. On failure returns null and sets *wrong to a message. Any other image (a real cubin or fat binary)
// gives an image whose kernels touch nothing and have unknown parameters.
std::shared_ptr<SimImage> ParseImage(const void* data, std::string* wrong);

// The kernel of that name; invented for images that are not text.
SimKernelInfo* FindKernel(SimImage& image, const std::string& name);

std::unique_ptr<CUfunc_st> NewFunction();
// Of a module that is unloaded. Their handles are given again.
void EndFunctions(CUmodule m);
// The modules of a context that ends, with their functions.
void EndModules(CUcontext c);

}  // namespace simgpu

#endif  // SIMGPU_API_IMAGE_H_
