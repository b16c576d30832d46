// Fences: everything that was queued on any stream of the device when the fence was closed is done.
//
// A range that the application frees may be reused or discarded only behind such a fence: the real cuMemFree waits for
// the device, and programs rely on it. Fences are closed lazily, when a range is to be reused, so that a free costs
// nothing. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_FENCES_H_
#define SLUICE_HOOKLIB_MEMORY_FENCES_H_

#include <deque>
#include <vector>

#include "hooklib/memory/timeline.h"

namespace sluice::memory {

class Fences {
 public:
  explicit Fences(Timeline* timeline) : timeline_(timeline) {}

  // The open fence: ranges that are freed now belong to it.
  Epoch open() const { return open_; }
  // Closes the open fence if anything waits for it. No effect while it is held, or a capture forbids marks.
  void Close();
  // Whether the fence was closed and all work before it is done.
  bool Done(Epoch epoch);
  // Something belongs to the open fence, so that Close() has a reason to set marks.
  Epoch Use() {
    used_ = true;
    return open_;
  }
  // The same of work that is not queued yet: the fence stays open until Release().
  Epoch Hold() {
    held_ = true;
    return Use();
  }
  void Release() { held_ = false; }

 private:
  struct Closed {
    Epoch epoch;
    std::vector<Mark> marks;
  };

  Timeline* timeline_;
  Epoch open_ = 1;
  Epoch done_ = 0;  // all fences up to this one are done
  bool used_ = false, held_ = false;
  std::deque<Closed> closed_;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_FENCES_H_
