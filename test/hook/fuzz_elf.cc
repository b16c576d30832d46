// libFuzzer target: the shim's ELF reader (hooklib/shim/elf.c) over an object with damaged tables. The reader must stay
// inside the object's segments, end, and never report a function that the object does not define.
//
// An input is an object in memory:
//   4 bytes  FNV-1a over everything behind them. Where it matches, the input is an undamaged seed.
//   1 byte   of a seed: which names must be found (bit i: kNames[i])
//   1 byte   bit 0: the addresses in the dynamic section are relocated in place, as glibc leaves them
//   1 byte   count of program headers; each has 5 bytes: type (0 PT_LOAD, 1 PT_DYNAMIC, else PT_NOTE), address and
//            size of 16 bits. Segments are cut off at the end of the image: the loader has mapped them, so they are
//            trusted. Everything else is not.
//   the rest the image
// make_elf_corpus.py writes the seeds; ../webhook/fuzz_replay.cc runs this without libFuzzer. elf.c is compiled with
// shim_iterate_objects renamed to fuzz_iterate_phdr, which shows it this object twice.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

extern "C" {
#include "hooklib/shim/shim.h"
}

namespace {

constexpr const char* kNames[] = {"cuInit",    "dlsym",       "alpha",  "beta_with_a_longer_name",
                                  "undefined", "old_version", "object", "absent"};
constexpr std::size_t kChecksumBytes = 4, kHeaderBytes = 3, kSegmentBytes = 5;
constexpr std::size_t kMaxSegments = 8, kMaxImageBytes = 1 << 16;
constexpr std::size_t kGuardBytes = std::size_t{1} << 24;

std::vector<ElfW(Phdr)> g_segments;
unsigned char* g_base;
std::size_t g_bytes;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "fuzz_elf: %s\n", what);
  std::abort();
}

// The end of a mapping with an inaccessible range on both sides; the same address in every run.
unsigned char* ImageEnd() {
  static unsigned char* const end = [] {
    void* const wanted = reinterpret_cast<void*>(std::uintptr_t{1} << 45);
    void* const all = mmap(wanted, 2 * kGuardBytes + kMaxImageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) Fail("mmap");
    unsigned char* const image = static_cast<unsigned char*>(all) + kGuardBytes;
    if (mprotect(image, kMaxImageBytes, PROT_READ | PROT_WRITE) != 0) Fail("mprotect");
    return image + kMaxImageBytes;
  }();
  return end;
}

uint16_t Read16(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }

uint32_t Hash(const uint8_t* data, std::size_t size) {
  uint32_t hash = 2166136261u;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash;
}

#ifdef __clang__
#define SLUICE_NOT_TRACED __attribute__((noinline, no_sanitize("coverage")))
#else
#define SLUICE_NOT_TRACED
#endif
// libFuzzer learns the operands of the comparisons that it traces. From this one it would learn to write checksums of
// its own inputs, which are no seeds.
SLUICE_NOT_TRACED bool IsSeed(uint32_t checksum, const uint8_t* data, std::size_t size) {
  return checksum == Hash(data, size);
}

// The offset in the image of an address in the dynamic section, relocated or not.
uint64_t Relative(uint64_t address) {
  const auto base = reinterpret_cast<std::uintptr_t>(g_base);
  return address < base ? address : address - base;
}

template <typename Visit>
void EachDynamic(Visit visit) {
  for (const ElfW(Phdr) & segment : g_segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    for (uint64_t at = segment.p_vaddr; at + sizeof(ElfW(Dyn)) <= g_bytes; at += sizeof(ElfW(Dyn))) {
      ElfW(Dyn) entry;
      std::memcpy(&entry, g_base + at, sizeof entry);
      if (entry.d_tag == DT_NULL) break;
      visit(&entry);
      std::memcpy(g_base + at, &entry, sizeof entry);
    }
  }
}

// Whether some symbol of the image has this name and value, whatever the hash tables say.
bool Defines(const char* name, uint64_t value) {
  std::vector<uint64_t> symbols, strings;
  EachDynamic([&](const ElfW(Dyn) * entry) {
    if (entry->d_tag == DT_SYMTAB) symbols.push_back(Relative(entry->d_un.d_ptr));
    if (entry->d_tag == DT_STRTAB) strings.push_back(Relative(entry->d_un.d_ptr));
  });
  for (const uint64_t table : symbols) {
    for (uint64_t at = table; at < g_bytes && g_bytes - at >= sizeof(ElfW(Sym)); at += sizeof(ElfW(Sym))) {
      ElfW(Sym) symbol;
      std::memcpy(&symbol, g_base + at, sizeof symbol);
      if (symbol.st_value != value || symbol.st_shndx == SHN_UNDEF) continue;
      for (const uint64_t text : strings) {
        const uint64_t begin = text + symbol.st_name, length = std::strlen(name) + 1;
        if (begin < g_bytes && g_bytes - begin >= length && std::memcmp(g_base + begin, name, length) == 0) return true;
      }
    }
  }
  return false;
}

}  // namespace

extern "C" int fuzz_iterate_phdr(int (*callback)(dl_phdr_info*, std::size_t, void*), void* data) {
  dl_phdr_info info{};
  info.dlpi_addr = reinterpret_cast<std::uintptr_t>(g_base);
  info.dlpi_name = "fuzz.so";
  info.dlpi_phdr = g_segments.data();
  info.dlpi_phnum = static_cast<ElfW(Half)>(g_segments.size());
  for (int i = 0; i < 2; ++i) {
    if (const int result = callback(&info, sizeof info, data)) return result;
  }
  return 0;
}

namespace {

// The object of one input, without its checksum, in memory. False where the input is too short.
bool Load(const uint8_t* data, std::size_t size) {
  if (size < kHeaderBytes) return false;
  const bool relocated = (data[1] & 1) != 0;
  const std::size_t count = std::min<std::size_t>(data[2], kMaxSegments);
  if (size < kHeaderBytes + count * kSegmentBytes) return false;
  const uint8_t* const image = data + kHeaderBytes + count * kSegmentBytes;
  g_bytes = std::min<std::size_t>(static_cast<std::size_t>(data + size - image), kMaxImageBytes) / 8 * 8;
  g_base = ImageEnd() - g_bytes;
  std::memcpy(g_base, image, g_bytes);
  g_segments.assign(count, {});
  for (std::size_t i = 0; i < count; ++i) {
    const uint8_t* const at = data + kHeaderBytes + i * kSegmentBytes;
    ElfW(Phdr)& segment = g_segments[i];
    segment.p_type = at[0] == 0 ? PT_LOAD : at[0] == 1 ? PT_DYNAMIC : PT_NOTE;
    segment.p_vaddr = Read16(at + 1);
    segment.p_memsz = Read16(at + 3);
    if (segment.p_type != PT_LOAD) continue;
    segment.p_vaddr = std::min<uint64_t>(segment.p_vaddr, g_bytes);
    segment.p_memsz = std::min<uint64_t>(segment.p_memsz, g_bytes - segment.p_vaddr);
  }
  if (!relocated) return true;
  EachDynamic([](ElfW(Dyn) * entry) {
    for (const auto tag : {DT_SYMTAB, DT_STRTAB, DT_HASH, DT_GNU_HASH, DT_VERSYM}) {
      if (entry->d_tag == tag) entry->d_un.d_ptr += reinterpret_cast<std::uintptr_t>(g_base);
    }
  });
  return true;
}

// Bit i: kNames[i] was found.
uint8_t LookUpAll() {
  uint8_t mask = 0;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    void* const found = shim_find_after(nullptr, kNames[i]);
    if (found == nullptr) continue;
    mask |= static_cast<uint8_t>(1 << i);
    const auto value = static_cast<uint64_t>(static_cast<unsigned char*>(found) - g_base);
    if (!Defines(kNames[i], value)) Fail("a function was found that the object does not define");
  }
  return mask;
}

void CheckSeed(uint8_t mask) {
  if (LookUpAll() != mask) Fail("other names were found in a seed than it says");
  // Behind the first of the two equal objects comes the second.
  shim_object object{};
  if (g_bytes == 0 || !shim_object_at(g_base, &object)) Fail("the object was not found by an address in it");
  for (const char* name : kNames) {
    if (shim_find_after(g_base, name) != shim_find_after(nullptr, name)) Fail("the next object was not searched");
  }
}

// Each 32-bit word of a seed's image in turn replaced by numbers at the edges: small indices, the image's end, the
// largest.
void DamageEachWord(std::vector<uint8_t> seed) {
  const std::size_t image = kHeaderBytes + seed[2] * kSegmentBytes;
  const auto end = static_cast<uint32_t>((seed.size() - image) / 8 * 8);
  std::vector<uint32_t> values{0x7fffffff, 0x80000000, 0xffffffff, end - 1, end - 2, end - 4};
  for (uint32_t i = 0; i <= 8; ++i) values.push_back(i);
  for (uint32_t i = 0; i <= 64; i += 8) values.push_back(end + 16 - i);
  for (std::size_t at = image; at + 4 <= seed.size(); at += 4) {
    uint8_t kept[4];
    std::memcpy(kept, &seed[at], sizeof kept);
    for (const uint32_t value : values) {
      std::memcpy(&seed[at], &value, sizeof value);
      if (Load(seed.data(), seed.size())) LookUpAll();
    }
    std::memcpy(&seed[at], kept, sizeof kept);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < kChecksumBytes + kHeaderBytes) return 0;
  const uint32_t checksum = Read16(data) | static_cast<uint32_t>(Read16(data + 2)) << 16;
  data += kChecksumBytes;
  size -= kChecksumBytes;
  if (!Load(data, size)) return 0;
  if (IsSeed(checksum, data, size)) {
    CheckSeed(data[0]);
    DamageEachWord({data, data + size});
  } else {
    LookUpAll();
  }
  return 0;
}
