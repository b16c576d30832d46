// Copies of the engine's own between places of the application's memory.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// In a stream of their own in the current context: the legacy stream would wait for blocking ones, whose work may wait
// for the calling thread. Planned as copies of the application's: `to` is overwritten. `from` may be memory that is not
// mapped for the application, and nothing may use it meanwhile. For one thread.
class ContentsCopies {
 public:
  ContentsCopies();
  ~ContentsCopies();
  ContentsCopies(const ContentsCopies&) = delete;
  ContentsCopies& operator=(const ContentsCopies&) = delete;

  CUresult Copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
  CUresult CopyFromHost(CUdeviceptr to, const void* from, size_t bytes);
  CUresult CopyToHost(void* to, CUdeviceptr from, size_t bytes);
  CUresult Await();  // the copies may not be done before

 private:
  CUstream stream_ = nullptr;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_
