// Calls that a profiler makes from inside the driver's own call: CUPTI's callbacks run on the thread of the call that
// they report, and may call the driver.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_NESTED_CALLS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_NESTED_CALLS_H_

namespace sluice {

// Open while the calling thread is in a driver call that the engine planned or admitted: it holds the stream's order,
// or a launch's place among the time slices. A call from inside that one must wait for neither, since the outer one
// cannot end before. So it is counted, and neither planned nor admitted by itself.
class CallUnderway {
 public:
  CallUnderway() { ++t_depth; }
  ~CallUnderway() { --t_depth; }
  CallUnderway(const CallUnderway&) = delete;
  CallUnderway& operator=(const CallUnderway&) = delete;

  static bool IsNested() { return t_depth != 0; }

 private:
  static constinit thread_local int t_depth;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_NESTED_CALLS_H_
