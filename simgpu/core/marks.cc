// Contents, and the checks of the misuse detector on them.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "misuse.h"
#include "simulator.h"

namespace simgpu {
namespace {

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string Place(const Allocation& a, uint64_t offset) {
  return "block " + Hex(a.base + offset) + " (allocation " + Hex(a.base) + " + " + std::to_string(offset) + ")";
}

}  // namespace

bool Simulator::CheckMapped(Stream* s, const Op& op) {
  const auto check = [&](uint64_t address, uint64_t length) {
    for (uint64_t at = address; at < address + length;) {
      const Allocation* a = memory_.Find(at);
      if (a == nullptr) {
        uint64_t base = 0;
        const uint64_t freed = memory_.FreedBy(at, &base);
        Misuse((freed != 0 ? "use after free: " : "access to unmapped memory: ") + Describe(op, *s) + " touches " +
               Hex(at) +
               (freed != 0 ? ", in allocation " + Hex(base) + " that was freed by operation #" + std::to_string(freed)
                           : ", where nothing is allocated"));
        return false;
      }
      at = a->base + a->size;
    }
    return true;
  };
  for (const Touch& t : op.touches) {
    if (memory_.InArena(t.address) && !check(t.address, t.length)) return false;
  }
  for (const PrefetchRange& r : op.ranges) {
    if (!check(r.address, r.length)) return false;
  }
  return true;
}

uint64_t Simulator::NoteRead(Stream* s, const Op& op, uint64_t address, uint64_t length, uint32_t object, int64_t t,
                             int64_t end, uint64_t digest, bool copies) {
  while (length != 0) {
    Allocation* a = memory_.Find(address);
    if (a == nullptr) return digest;
    const uint64_t from = address - a->base, to = std::min(from + length, a->size);
    a->content->ForEach(from, to, [&](Segment& g) {
      if (g.kind == Segment::kDiscarded && !copies) {
        Misuse("read of discarded data: " + Describe(op, *s) + " reads " + Place(*a, g.begin) +
               ", which was discarded by operation #" + std::to_string(g.writer));
      } else if (object != 0 && g.object != 0 && g.object != object) {
        Misuse("range reused before its last use was over: " + Describe(op, *s) + " reads object " +
               std::to_string(object) + " in " + Place(*a, g.begin) + " and finds object " + std::to_string(g.object) +
               ", written by operation #" + std::to_string(g.writer));
      }
      if (g.write_until > t && g.user_stream != s->id) ++figures_[s->card].races;
      if (end > g.use_until) {
        g.use_until = end;
        g.user = op.number;
        g.user_stream = s->id;
      }
    });
    digest = a->content->Digest(from, to, digest);
    length -= to - from;
    address += to - from;
  }
  return digest;
}

void Simulator::NoteWrite(Stream* s, const Op& op, uint64_t address, uint64_t length, uint32_t object, int64_t t,
                          int64_t end, Segment contents) {
  contents.object = object;
  contents.user = op.number;
  if (contents.kind != Segment::kDiscarded || op.kind == OpKind::kDiscard) contents.writer = op.number;
  contents.user_stream = s->id;
  contents.write_until = contents.use_until = end;
  const uint64_t start = address;
  while (length != 0) {
    Allocation* a = memory_.Find(address);
    if (a == nullptr) return;
    const uint64_t from = address - a->base, to = std::min(from + length, a->size);
    if (op.kind != OpKind::kDiscard) {
      a->content->ForEach(from, to, [&](const Segment& g) {
        if (g.use_until <= t || g.user_stream == s->id) return;
        if (object != 0 && g.object != 0 && g.object != object) {
          Misuse("range reused before its last use was over: " + Describe(op, *s) + " writes object " +
                 std::to_string(object) + " over " + Place(*a, g.begin) + " where object " + std::to_string(g.object) +
                 " is still in use by operation #" + std::to_string(g.user) + " on stream " +
                 std::to_string(g.user_stream));
        } else {
          ++figures_[s->card].races;
        }
      });
    }
    Segment piece = contents;
    piece.origin = static_cast<int64_t>(from) - static_cast<int64_t>(address - start);
    a->content->Assign(from, to, piece);
    length -= to - from;
    address += to - from;
  }
}

void Simulator::CheckUnused(Stream* s, const Op& op, uint64_t address, uint64_t length, int64_t t, bool discard) {
  while (length != 0) {
    Allocation* a = memory_.Find(address);
    if (a == nullptr) return;
    const uint64_t from = address - a->base, to = std::min(from + length, a->size);
    for (uint64_t at = from; discard && a->kind == MemoryKind::kManaged && at < to;) {
      const BlockPart part = memory_.PartAt(a, a->base + at, a->base + to);
      if (part.block->moving > 0) {
        Misuse("discarded while it is being moved: " + Describe(op, *s) + " discards " + Place(*a, at) +
               " while a transfer of it runs");
      }
      at = part.address + part.block_bytes - a->base;
    }
    a->content->Visit(from, to, [&](const Segment& g, uint64_t begin, uint64_t stop) {
      if (g.use_until <= t) return;
      if (discard) {
        Misuse("discarded while in use: " + Describe(op, *s) + " discards " + Place(*a, begin) + " while operation #" +
               std::to_string(g.user) + " on stream " + std::to_string(g.user_stream) + " still works on it");
      } else {
        figures_[s->card].evicted_in_use += stop - begin;
      }
    });
    length -= to - from;
    address += to - from;
  }
}

void Simulator::ReportWriteOfDiscarded(const Stream& s, const Op& op, const Allocation& a, uint64_t offset) const {
  Misuse("written by faults while discarded: " + Describe(op, s) + " writes " + Place(a, offset) +
         ", which was discarded and not prefetched since");
}

void Simulator::NoteMoving(const Op& op, bool begins) {
  for (const PrefetchRange& r : op.ranges) {
    for (uint64_t at = r.address; at < r.address + r.length;) {
      Allocation* a = memory_.Find(at);
      if (a == nullptr || a->kind != MemoryKind::kManaged) break;
      const BlockPart part = memory_.PartAt(a, at, std::min(r.address + r.length, a->base + a->size));
      if (begins) {
        ++part.block->moving;
      } else if (part.block->moving > 0) {  // freed and allocated again meanwhile
        --part.block->moving;
      }
      at = part.address + part.block_bytes;
    }
  }
}

void Simulator::CheckIdle(uint64_t address, uint64_t length, int64_t time, const char* what) {
  Allocation* a = memory_.Find(address);
  if (a == nullptr) return;
  const uint64_t from = address - a->base;
  a->content->Visit(from, std::min(from + length, a->size), [&](const Segment& g, uint64_t begin, uint64_t) {
    if (g.use_until <= time) return;
    Misuse(std::string(what) + " while in use: " + Place(*a, begin) + " while operation #" + std::to_string(g.user) +
           " on stream " + std::to_string(g.user_stream) + " still works on it");
  });
}

void Simulator::CopyContents(Stream* s, Op* op, int64_t t, int64_t end) {
  const CopyWork& c = op->copy;
  for (uint64_t z = 0; z < c.depth; ++z) {
    for (uint64_t y = 0; y < c.height; ++y) {
      CopyRow(s, *op, c.dst + z * c.dst_slice + y * c.dst_pitch, c.src + z * c.src_slice + y * c.src_pitch,
              (z * c.height + y) * c.width, c.width, t, end);
    }
  }
}

void Simulator::CopyRow(Stream* s, const Op& op, uint64_t dst, uint64_t src, uint64_t row, uint64_t length, int64_t t,
                        int64_t end) {
  const bool to_device = memory_.InArena(dst), from_device = memory_.InArena(src);
  const uint8_t* staged = op.copy.staged != nullptr ? op.copy.staged->data.get() + row : nullptr;
  // A copy of discarded data within the GPU's memory is no misuse, but the copy is discarded data as well.
  if (from_device) NoteRead(s, op, src, length, 0, t, end, 0, to_device);
  if (!to_device && !from_device) {
    std::memmove(reinterpret_cast<void*>(dst), staged != nullptr ? staged : reinterpret_cast<const void*>(src), length);
    return;
  }
  if (!to_device) {
    ReadBytes(src, reinterpret_cast<void*>(dst), length);
    return;
  }
  if (!from_device) {
    const void* from = staged != nullptr ? staged : reinterpret_cast<const void*>(src);
    constexpr uint64_t kWord = sizeof(uint32_t);
    if (length % kWord == 0 && length <= 2 * kWord && dst % kWord == 0) {
      // As values and memsets write them: the digest is the same.
      for (uint64_t i = 0; i < length; i += kWord) {
        uint32_t word = 0;
        std::memcpy(&word, static_cast<const uint8_t*>(from) + i, kWord);
        Segment g;
        g.kind = Segment::kFill;
        g.value = uint64_t{word} << 32 | word;
        NoteWrite(s, op, dst + i, kWord, 0, t, end, std::move(g));
      }
      return;
    }
    Segment g;
    if (Bytes::live + length <= static_cast<uint64_t>(profile_.content_bytes)) {
      g.kind = Segment::kBytes;
      g.bytes = std::make_shared<Bytes>(length);
      std::memcpy(g.bytes->data.get(), from, length);
    } else {
      // The contents exceed the limit: keep a pattern that depends on the bytes, instead of the bytes.
      g.kind = Segment::kStamp;
      g.value = HashBytes(from, length);
      if (!logged_content_limit_) {
        logged_content_limit_ = true;
        std::fprintf(stderr, "simgpu: copies hold more than content_bytes (%lld); further ones are kept as digests\n",
                     static_cast<long long>(profile_.content_bytes));
      }
    }
    NoteWrite(s, op, dst, length, 0, t, end, std::move(g));
    return;
  }
  // Device to device: the source's segments, cut and shifted. Taken first: the ranges may share an allocation.
  std::vector<std::pair<uint64_t, Segment>> pieces;
  std::vector<int64_t> shift;
  for (uint64_t at = src; at < src + length;) {
    Allocation* a = memory_.Find(at);
    if (a == nullptr) return;
    const uint64_t from = at - a->base, to = std::min(src + length - a->base, a->size);
    a->content->ForEach(from, to, [&](const Segment& g) {
      pieces.emplace_back(a->content->EndOf(g) - g.begin, g);
      shift.push_back(static_cast<int64_t>(g.begin) - g.origin);
    });
    at += to - from;
  }
  uint64_t at = dst;
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto& [n, g] = pieces[i];
    Allocation* a = memory_.Find(at);
    if (a == nullptr) return;
    if (g.kind == Segment::kFill) {
      const uint64_t turn = (at - a->base - g.begin) & 7;
      if (turn != 0) g.value = g.value << (8 * turn) | g.value >> (64 - 8 * turn);
    }
    // NoteWrite sets where the stream of bytes begins; a cut source begins earlier.
    const uint32_t object = 0;
    const Segment::Kind kind = g.kind;
    const uint64_t begin_shift = static_cast<uint64_t>(shift[i]);
    NoteWrite(s, op, at, n, object, t, end, g);
    const bool is_shifted = (kind == Segment::kStamp || kind == Segment::kBytes) && begin_shift != 0;
    // Mappings side by side are several allocations.
    for (uint64_t there = at; is_shifted && there < at + n; there = a->base + a->size) {
      a = memory_.Find(there);
      if (a == nullptr) return;
      a->content->ForEach(there - a->base, std::min(at + n - a->base, a->size),
                          [&](Segment& d) { d.origin -= static_cast<int64_t>(begin_shift); });
    }
    at += n;
  }
}

bool Simulator::Mapped(uint64_t address, uint64_t length) {
  for (uint64_t at = address; at < address + length;) {
    const Allocation* a = memory_.Find(at);
    if (a == nullptr) return false;
    // A range stays within its allocation. Mappings side by side are one.
    if (at != address && a->kind != MemoryKind::kMapped) return false;
    at = a->base + a->size;
    if (a->kind != MemoryKind::kMapped) return address + length <= at;
  }
  return true;
}

// A GPU accesses an aligned word of host memory as a whole: host threads write and poll such words at the same time.
template <typename Word>
static bool IsWord(uint64_t address, uint64_t length) {
  return length == sizeof(Word) && address % sizeof(Word) == 0;
}

static void ReadHost(uint64_t address, void* out, uint64_t length) {
  if (IsWord<uint32_t>(address, length)) {
    const uint32_t word = __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
    std::memcpy(out, &word, sizeof word);
  } else if (IsWord<uint64_t>(address, length)) {
    const uint64_t word = __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE);
    std::memcpy(out, &word, sizeof word);
  } else {
    std::memcpy(out, reinterpret_cast<const void*>(address), length);
  }
}

static void WriteHost(uint64_t address, const void* in, uint64_t length) {
  if (IsWord<uint32_t>(address, length)) {
    uint32_t word = 0;
    std::memcpy(&word, in, sizeof word);
    __atomic_store_n(reinterpret_cast<uint32_t*>(address), word, __ATOMIC_RELEASE);
  } else if (IsWord<uint64_t>(address, length)) {
    uint64_t word = 0;
    std::memcpy(&word, in, sizeof word);
    __atomic_store_n(reinterpret_cast<uint64_t*>(address), word, __ATOMIC_RELEASE);
  } else {
    std::memcpy(reinterpret_cast<void*>(address), in, length);
  }
}

bool Simulator::ReadBytes(uint64_t address, void* out, uint64_t length) {
  auto* to = static_cast<uint8_t*>(out);
  if (!memory_.InArena(address)) {
    ReadHost(address, to, length);
    return true;
  }
  while (length != 0) {
    Allocation* a = memory_.Find(address);
    if (a == nullptr) return false;
    const uint64_t from = address - a->base, stop = std::min(from + length, a->size);
    a->content->Read(from, stop, to, a->kind == MemoryKind::kManaged ? 0 : 0xCD);
    to += stop - from;
    length -= stop - from;
    address += stop - from;
  }
  return true;
}

bool Simulator::WriteBytes(uint64_t address, const void* in, uint64_t length) {
  if (!memory_.InArena(address)) {
    WriteHost(address, in, length);
    return true;
  }
  Allocation* a = memory_.Find(address);
  if (a == nullptr || address + length > a->base + a->size) return false;
  Segment g;
  g.kind = Segment::kBytes;
  g.bytes = std::make_shared<Bytes>(length);
  std::memcpy(g.bytes->data.get(), in, length);
  g.origin = static_cast<int64_t>(address - a->base);
  a->content->Assign(address - a->base, address - a->base + length, g);
  return true;
}

void Simulator::WriteWord(uint64_t address, uint32_t value) {
  Allocation* a = memory_.InArena(address) ? memory_.Find(address) : nullptr;
  if (a == nullptr) {
    WriteBytes(address, &value, sizeof value);
    return;
  }
  Segment g;
  g.kind = Segment::kFill;
  g.value = uint64_t{value} << 32 | value;
  a->content->Assign(address - a->base, address - a->base + sizeof value, g);
}

uint64_t Simulator::ResidentBytes(uint64_t address, uint64_t length) {
  uint64_t bytes = 0;
  for (uint64_t at = address; at < address + length;) {
    Allocation* a = memory_.Find(at);
    if (a == nullptr) break;
    const uint64_t end = std::min(address + length, a->base + a->size);
    if (a->kind != MemoryKind::kManaged) {
      if (!a->host_located) bytes += end - at;
      at = end;
      continue;
    }
    const BlockPart part = memory_.PartAt(a, at, end);
    memory_.Validate(part.block);
    bytes += std::min(BytesOf(part.block->resident & part.mask, part.block_bytes), end - at);
    at = part.address + part.block_bytes;
  }
  return bytes;
}

uint64_t Simulator::Digest(uint64_t address, uint64_t length) {
  uint64_t h = 7;
  for (uint64_t at = address; at < address + length;) {
    Allocation* a = memory_.Find(at);
    if (a == nullptr) return 0;
    const uint64_t from = at - a->base, to = std::min(address + length - a->base, a->size);
    h = a->content->Digest(from, to, h);
    at += to - from;
  }
  return h;
}

}  // namespace simgpu
