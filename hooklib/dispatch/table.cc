#include "hooklib/dispatch/table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <type_traits>

#include "common/mutex.h"
#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/dispatch/uncancelled.h"

// Weak here, and only here: an entry that hooklib/engine does not define is null, and the forwarding one takes its
// place. Hidden, so that the shipped library has no dynamic symbol for it.
// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
#pragma GCC visibility push(hidden)
namespace sluice::entry {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) \
  extern __attribute__((weak)) decltype(::elf_name) elf_name;
#include "hooklib/hooks.def"
}  // namespace sluice::entry
#pragma GCC visibility pop
// NOLINTEND(bugprone-macro-parentheses)

namespace sluice {

constinit Real g_real;
constinit std::atomic<bool> g_is_forked_child{false};
constinit thread_local const void* t_caller = nullptr;

namespace {

// The default entry of a row: the driver's function with its own signature.
template <auto Member, typename Function>
struct Forward;
template <auto Member, typename... Args>
struct Forward<Member, CUresult(Args...)> {
  static CUresult Call(Args... args) {
    const auto real = g_real.*Member;
    return real != nullptr ? real(args...) : CUDA_ERROR_NOT_FOUND;
  }
};

// The entry of a row that queues work which no entry plans: the driver's function, and then its work is counted.
template <auto Member, bool kPerThread, typename Function>
struct Counted;
template <auto Member, bool kPerThread, typename... Args>
struct Counted<Member, kPerThread, CUresult(Args...)> {
  static CUresult Call(Args... args) {
    const auto real = g_real.*Member;
    if (real == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (g_is_forked_child.load(std::memory_order_relaxed)) [[unlikely]]
      return real(args...);
    CUstream stream = nullptr;
    const auto take = [&stream](auto arg) {
      if constexpr (std::is_same_v<decltype(arg), CUstream>) stream = arg;
    };
    (take(args), ...);
    return Uncancelled([&] {
      void* const queue = BeginCounted(stream, kPerThread);
      const CUresult result = real(args...);
      EndCounted(queue);
      return result;
    });
  }
};

// NOLINTNEXTLINE(readability-identifier-naming): as hooks.def writes them
enum class Capture { kNone, UNSAFE, UNSAFE_BESIDE, NEVER, NEVER_UNSAFE_BESIDE };

// In front of each of the engine's entries. In a forked child the driver takes its place. Where the driver may refuse
// the call while a stream is captured, it is asked before, since the entry would serve the call. The program's tail
// jumps lead here, so the return address is the caller's. No cancellation of the thread takes effect in the entry: it
// may hold locks, and glibc's unwinder cannot pass its frames.
// A launch alone is reached by a tail jump: it takes a hundred instructions less, and its paths that may wait see to
// cancellation themselves (entries/launch_entries.cc).
template <auto Defined, auto Member, Capture kRule, bool kPerThread, bool kLaunches, typename Function>
struct Guarded;
template <auto Defined, auto Member, Capture kRule, bool kPerThread, bool kLaunches, typename... Args>
struct Guarded<Defined, Member, kRule, kPerThread, kLaunches, CUresult(Args...)> {
  [[gnu::noinline]] static CUresult Ask(Args... args) {
    CUstream stream = nullptr;
    [[maybe_unused]] const auto take = [&stream]([[maybe_unused]] auto arg) {
      if constexpr (std::is_same_v<decltype(arg), CUstream>) stream = arg;
    };
    (take(args), ...);
    if constexpr (kRule == Capture::UNSAFE) return AskUnsafe();
    const bool is_served =
        IsStreamCaptured(stream, kPerThread) ? kRule == Capture::UNSAFE_BESIDE : kRule == Capture::NEVER;
    return is_served ? CUDA_SUCCESS : AskOfStream(stream, kPerThread);
  }
  static CUresult Call(Args... args) {
    if (g_is_forked_child.load(std::memory_order_relaxed)) [[unlikely]]
      return Forward<Member, CUresult(Args...)>::Call(args...);
    if constexpr (kLaunches) {
      static_assert(kRule == Capture::kNone);
      auto* defined = Defined;
#ifdef __aarch64__  // clang jumps to no weak symbol there (AAELF64), so the address goes through a register
      asm("" : "+r"(defined));
#endif
#ifdef __clang__
      [[clang::musttail]]
#endif
      return defined(args...);
    } else {
      const void* const caller = __builtin_return_address(0);
      return Uncancelled([&] {
        if (const CUresult answer = AskFirst(args...); answer != CUDA_SUCCESS) return answer;
        NoteCaller(caller);
        return Defined(args...);
      });
    }
  }

 private:
  static CUresult AskFirst([[maybe_unused]] Args... args) {
    if constexpr (kRule != Capture::kNone) {
      if (IsAnyCaptured()) [[unlikely]]
        return Ask(args...);
    }
    return CUDA_SUCCESS;
  }
};

enum class Order { kNone, PLANNED, COUNTED, SERVED, WAITS, CAPTURES, RECORDS, ENDS };  // as hooks.def writes them

template <typename Rule>
struct RuleRow {
  std::string_view name;
  Rule rule;
};
constexpr RuleRow<Order> kOrders[] = {
#define SLUICE_ORDER(elf_name, effect) {#elf_name, Order::effect},
#include "hooklib/hooks.def"
};
constexpr RuleRow<Capture> kCaptures[] = {
#define SLUICE_CAPTURE(elf_name, rule) {#elf_name, Capture::rule},
#include "hooklib/hooks.def"
};
template <typename Rule, std::size_t kCount>
constexpr Rule RuleOf(const RuleRow<Rule> (&rows)[kCount], std::string_view name) {
  for (const RuleRow<Rule>& row : rows) {
    if (row.name == name) return row.rule;
  }
  return Rule::kNone;
}
constexpr Order OrderOf(std::string_view name) { return RuleOf(kOrders, name); }
constexpr Capture CaptureOf(std::string_view name) { return RuleOf(kCaptures, name); }

template <typename Function>
constexpr bool kTakesStream = false;
template <typename... Args>
constexpr bool kTakesStream<CUresult(Args...)> = (std::is_same_v<Args, CUstream> || ...);

// A row with a stream parameter says how it changes the order of work. Else memory could be reused before work that it
// queues is done.
#define SLUICE_HOOK(elf_name, base, version, flavour, category)                                \
  static_assert(!kTakesStream<decltype(::elf_name)> || OrderOf(#elf_name) != Order::kNone,     \
                #elf_name " has a stream parameter and no SLUICE_ORDER row in hooks.def");     \
  static_assert(OrderOf(#elf_name) != Order::SERVED || CaptureOf(#elf_name) != Capture::kNone, \
                #elf_name " is SERVED and has no SLUICE_CAPTURE row in hooks.def");
#include "hooklib/hooks.def"

template <auto Member, bool kPerThread, bool kCounts, typename Function>
void* GeneratedEntry() {
  // NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): function pointers as dlsym gives them.
  if constexpr (kCounts) return reinterpret_cast<void*>(&Counted<Member, kPerThread, Function>::Call);
  return reinterpret_cast<void*>(&Forward<Member, Function>::Call);
  // NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)
}

struct RealSlot {
  const char* name;
  void** slot;
};

// NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): function pointers as dlsym gives them.
const RealSlot kRealSlots[] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) {#elf_name, reinterpret_cast<void**>(&g_real.elf_name)},
#define SLUICE_USE(elf_name) {#elf_name, reinterpret_cast<void**>(&g_real.elf_name)},
#include "hooklib/hooks.def"
};

struct EntryPair {
  void* defined;
  void* guarded;  // in its place, where it is defined
  void* forward;
};

// A local table: where a compiler fills it at run time, it is full at the first use, before other constructors.
const EntryPair& EntriesOf(std::size_t index) {
  static const EntryPair all[] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category)                                             \
  {reinterpret_cast<void*>(&entry::elf_name),                                                               \
   reinterpret_cast<void*>(&Guarded < &entry::elf_name, &Real::elf_name, CaptureOf(#elf_name),              \
                           Flavour::flavour == Flavour::PTSZ, std::string_view(#category) == "LAUNCH",      \
                           decltype(::elf_name) > ::Call),                                                  \
   GeneratedEntry<&Real::elf_name, Flavour::flavour == Flavour::PTSZ, OrderOf(#elf_name) == Order::COUNTED, \
                  decltype(::elf_name)>()},
#include "hooklib/hooks.def"
  };
  return all[index];
}
// NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)

constexpr std::size_t kHooks = 0
#define SLUICE_HOOK(elf_name, base, version, flavour, category) +1  // NOLINT(bugprone-macro-parentheses): a sum's term
#include "hooklib/hooks.def"
    ;

enum HookIndex : int {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) kIndex_##elf_name,
#include "hooklib/hooks.def"
};

constexpr HookRow kRows[] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) \
  {#elf_name, #base, version, Flavour::flavour, kIndex_##elf_name},
#define SLUICE_PASS(elf_name, base, version, flavour, reason) {#elf_name, #base, version, Flavour::flavour, -1},
#include "hooklib/hooks.def"
};

// By base, then version.
const auto& Rows() {
  static const auto sorted = [] {
    std::array<HookRow, std::size(kRows)> rows{};
    std::copy(std::begin(kRows), std::end(kRows), rows.begin());
    std::sort(rows.begin(), rows.end(), [](const HookRow& a, const HookRow& b) {
      return a.base != b.base ? a.base < b.base : a.version < b.version;
    });
    return rows;
  }();
  return sorted;
}

// Held by a thread that binds: g_real is written under it, and read without it once `bound` is true.
Mutex bind_mutex;
std::atomic<bool> bound{false};
void*& WritableReal(std::size_t slot) SLUICE_REQUIRES(bind_mutex) { return *kRealSlots[slot].slot; }

}  // namespace

std::size_t HookCount() { return kHooks; }
const char* HookName(std::size_t index) { return kRealSlots[index].name; }

void* Entry(std::size_t index) {
  const EntryPair& pair = EntriesOf(index);
  return pair.defined != nullptr ? pair.guarded : pair.forward;
}

void* RealOf(std::size_t index) { return *kRealSlots[index].slot; }

void* EntryForPointer(const void* real) {
  if (real == nullptr) return nullptr;
  for (std::size_t i = 0; i < kHooks; ++i) {
    if (RealOf(i) == real) return Entry(i);
  }
  return nullptr;
}

void* EntryForRequest(std::string_view base, int version, bool per_thread) {
  const auto& rows = Rows();
  const auto [first, last] = std::equal_range(rows.begin(), rows.end(), HookRow{{}, base, 0, Flavour::ANY, -1},
                                              [](const HookRow& a, const HookRow& b) { return a.base < b.base; });
  const HookRow* best = nullptr;
  bool best_matches = false;
  for (auto row = first; row != last; ++row) {
    const bool per_thread_form = row->flavour == Flavour::PTSZ || row->flavour == Flavour::PTDS;
    if (row->version > version || (per_thread_form && !per_thread)) continue;
    if (row->index >= 0 && RealOf(static_cast<std::size_t>(row->index)) == nullptr) continue;
    // Rows are in order of version; a per-thread request takes the per-thread form wherever there is one.
    if (best_matches && !per_thread_form && per_thread) continue;
    best = &*row;
    best_matches = per_thread_form;
  }
  return best != nullptr && best->index >= 0 ? Entry(static_cast<std::size_t>(best->index)) : nullptr;
}

bool IsIntercepted(std::string_view base) {
  return std::any_of(std::begin(kRows), std::end(kRows),
                     [base](const HookRow& row) { return row.index >= 0 && row.base == base; });
}

bool IsExamined(std::string_view base) {
  constexpr std::string_view kPrefixes[] = {
#define SLUICE_PASS_PREFIX(base_prefix, reason) #base_prefix,
#include "hooklib/hooks.def"
  };
  return std::any_of(std::begin(kRows), std::end(kRows), [base](const HookRow& row) { return row.base == base; }) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [base](std::string_view prefix) { return base.starts_with(prefix); });
}

bool RealBound() { return bound.load(std::memory_order_acquire); }

namespace {

void Bind(void* (*lookup)(void* context, const char* name), void* context, bool replaces) {
  constexpr std::size_t kSlots = sizeof(kRealSlots) / sizeof(kRealSlots[0]);
  if (RealBound() && !replaces) return;
  // Every lookup takes the loader's lock, so none may happen while ours is held.
  std::array<void*, kSlots> found{};
  for (std::size_t i = 0; i < kSlots; ++i) found[i] = lookup(context, kRealSlots[i].name);
  const MutexLock lock(bind_mutex);
  if (RealBound() && !replaces) return;
  for (std::size_t i = 0; i < kSlots; ++i) WritableReal(i) = found[i];
  bound.store(true, std::memory_order_release);
}

}  // namespace

void BindReal(void* (*lookup)(void* context, const char* name), void* context) { Bind(lookup, context, false); }
void RebindReal(void* (*lookup)(void* context, const char* name), void* context) { Bind(lookup, context, true); }

}  // namespace sluice
