// Fences: "everything that was queued on any stream of the device when this fence was closed is done".
//
// A range that the application frees may be reused or discarded only behind such a fence, since the real cuMemFree
// waits for the device and programs rely on it. Fences are closed lazily, when somebody wants to reuse something, so
// that a free costs nothing. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_FENCES_H_
#define SLUICE_HOOKLIB_MEMORY_FENCES_H_

#include <deque>
#include <vector>

#include "hooklib/memory/timeline.h"

namespace sluice::memory {

class Fences {
 public:
  explicit Fences(Timeline* timeline) : timeline_(timeline) {}

  // The fence that is still open: what is freed now belongs to it.
  Epoch open() const { return open_; }
  // Closes the open fence if anything waits for it. Without effect while a capture forbids marks.
  void Close();
  // Whether the fence was closed and all behind it is done.
  bool Done(Epoch epoch);
  // Tells that something belongs to the open fence, so that Close() has a reason to set marks.
  Epoch Use() {
    used_ = true;
    return open_;
  }

 private:
  struct Closed {
    Epoch epoch;
    std::vector<Mark> marks;
  };

  Timeline* timeline_;
  Epoch open_ = 1;
  Epoch done_ = 0;  // all fences up to this one are done
  bool used_ = false;
  std::deque<Closed> closed_;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_FENCES_H_
