// Which lock guards what, in a form that clang checks (-Wthread-safety). Macros only: this header includes nothing and
// may be used everywhere. Other compilers see nothing.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
//
// The analysis follows types that are annotated themselves, which std::mutex and pthread_mutex_t are not: use
// sluice::Mutex (common/mutex.h), or annotate a lock class of your own as it is done there.
#ifndef SLUICE_COMMON_THREAD_ANNOTATIONS_H_
#define SLUICE_COMMON_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define SLUICE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SLUICE_THREAD_ATTRIBUTE(x)
#endif

// --- on data members ---
// Read and written with the lock held.
#define SLUICE_GUARDED_BY(lock) SLUICE_THREAD_ATTRIBUTE(guarded_by(lock))
// The same of the object that a pointer points to; the pointer itself may be read without the lock.
#define SLUICE_PT_GUARDED_BY(lock) SLUICE_THREAD_ATTRIBUTE(pt_guarded_by(lock))

// --- on lock members: the lock order ---
#define SLUICE_ACQUIRED_BEFORE(...) SLUICE_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define SLUICE_ACQUIRED_AFTER(...) SLUICE_THREAD_ATTRIBUTE(acquired_after(__VA_ARGS__))

// --- on functions ---
// The caller holds the locks before and after the call.
#define SLUICE_REQUIRES(...) SLUICE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SLUICE_REQUIRES_SHARED(...) SLUICE_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
// The caller must not hold the locks: the function takes them, or waits for a thread that does.
#define SLUICE_EXCLUDES(...) SLUICE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// The function returns with the locks taken, or released.
#define SLUICE_ACQUIRE(...) SLUICE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SLUICE_ACQUIRE_SHARED(...) SLUICE_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define SLUICE_RELEASE(...) SLUICE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define SLUICE_RELEASE_SHARED(...) SLUICE_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
// The first argument is the return value that means "taken".
#define SLUICE_TRY_ACQUIRE(...) SLUICE_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
// The analysis assumes that the lock is held from this call on: for callbacks whose caller holds it.
#define SLUICE_ASSERT_HELD(...) SLUICE_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
// The function returns a reference to the lock.
#define SLUICE_LOCK_RETURNED(lock) SLUICE_THREAD_ATTRIBUTE(lock_returned(lock))
// Not checked. Each use needs a comment that says why it is safe.
#define SLUICE_NO_THREAD_SAFETY_ANALYSIS SLUICE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

// --- on classes ---
// `kind` appears in diagnostics: "mutex", or "role" for the work of one thread.
#define SLUICE_CAPABILITY(kind) SLUICE_THREAD_ATTRIBUTE(capability(kind))
// A class that takes a lock in its constructor and releases it in its destructor.
#define SLUICE_SCOPED_LOCK SLUICE_THREAD_ATTRIBUTE(scoped_lockable)

#endif  // SLUICE_COMMON_THREAD_ANNOTATIONS_H_
