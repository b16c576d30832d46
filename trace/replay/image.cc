#include "image.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace sluice::replay {
namespace {

// Reads every byte of the ranges, so that host-resident memory crosses the link whole and as kernels read it, by lines
// of 128 bytes. A block of 1,024 threads reads 16 KiB, then advances by the whole grid. A range begins at the 16-byte
// boundary below it, since no allocation ends inside 16 bytes. Then all threads wait until the time is over.
constexpr const char* kBody = R"({
  .reg .pred %p<4>;
  .reg .u32 %r<8>;
  .reg .u64 %rd<16>;
  mov.u64 %rd0, %globaltimer;
  ld.param.u32 %r0, [launch];
  mov.u64 %rd1, sluice_table;
  ld.global.u64 %rd1, [%rd1];
  mul.wide.u32 %rd2, %r0, 24;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.u64 %rd3, [%rd1];
  ld.global.u64 %rd4, [%rd1+8];
  ld.global.u64 %rd5, [%rd1+16];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %nctaid.x;
  mov.u32 %r3, %tid.x;
  mul.wide.u32 %rd6, %r2, 16384;
  mul.wide.u32 %rd7, %r1, 16384;
  mul.wide.u32 %rd8, %r3, 16;
NEXT_RUN:
  setp.eq.u64 %p0, %rd4, 0;
  @%p0 bra SPIN;
  ld.global.u64 %rd9, [%rd3];
  ld.global.u64 %rd10, [%rd3+8];
  and.b64 %rd14, %rd9, 15;
  sub.u64 %rd9, %rd9, %rd14;
  add.u64 %rd10, %rd10, %rd14;
  add.u64 %rd11, %rd7, %rd8;
NEXT_PART:
  setp.ge.u64 %p1, %rd11, %rd10;
  @%p1 bra RUN_DONE;
  add.u64 %rd12, %rd9, %rd11;
  ld.volatile.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd12];
  add.u64 %rd11, %rd11, %rd6;
  bra NEXT_PART;
RUN_DONE:
  add.u64 %rd3, %rd3, 16;
  sub.u64 %rd4, %rd4, 1;
  bra NEXT_RUN;
SPIN:
  mov.u64 %rd13, %globaltimer;
  sub.u64 %rd13, %rd13, %rd0;
  setp.lt.u64 %p2, %rd13, %rd5;
  @%p2 bra SPIN;
  ret;
}
)";

uint32_t NaturalAlignment(uint32_t bytes) { return bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

void Entry(const trace::Function& function, size_t index, std::string& text) {
  text += "// " + function.name.substr(0, 200) + "\n.visible .entry k" + std::to_string(index) + "(";
  size_t number = 0;
  for (const trace::Parameter& piece : Pieces(function)) {
    text += "\n  .param .align " + std::to_string(NaturalAlignment(piece.bytes)) + " .b8 p" + std::to_string(number++) +
            "[" + std::to_string(piece.bytes) + "],";
  }
  text += std::string("\n  .param .u32 launch)\n") + kBody;
}

}  // namespace

uint32_t ParameterBytes(const trace::Function& function) {
  uint32_t end = 0;
  for (const trace::Parameter& parameter : function.parameters) end = std::max(end, parameter.offset + parameter.bytes);
  return end;
}

std::string Image(const std::vector<trace::Function>& functions) {
  std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .u64 sluice_table;\n";
  for (size_t i = 0; i < functions.size(); ++i) Entry(functions[i], i, text);
  return text;
}

std::vector<trace::Parameter> Pieces(const trace::Function& function) {
  std::vector<trace::Parameter> sorted = function.parameters;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::vector<trace::Parameter> pieces;
  uint32_t end = 0;
  // Fills bytes up to `until` with pieces whose alignment fits their place.
  const auto fill = [&pieces, &end](uint32_t until) {
    while (end < until) {
      const uint32_t left = until - end;
      const uint32_t bytes = end % 8 == 0 && left >= 8   ? 8
                             : end % 4 == 0 && left >= 4 ? 4
                             : end % 2 == 0 && left >= 2 ? 2
                                                         : 1;
      pieces.push_back({end, bytes});
      end += bytes;
    }
  };
  for (const trace::Parameter& p : sorted) {
    if (p.bytes == 0 || p.offset < end) continue;
    const uint32_t align = NaturalAlignment(p.bytes);
    if ((end + align - 1) / align * align != p.offset) fill(p.offset);
    if (p.offset % align == 0) {
      pieces.push_back(p);
      end = p.offset + p.bytes;
    } else {
      fill(p.offset + p.bytes);
    }
  }
  return pieces;
}

std::vector<std::string> SimulatedNames(const std::vector<trace::Function>& functions) {
  std::vector<std::string> names;
  std::set<std::string> taken;  // two files may each have a kernel of one name
  for (const trace::Function& function : functions) {
    const bool plain = !function.name.empty() && std::all_of(function.name.begin(), function.name.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.';
    });
    const std::string number = "k" + std::to_string(names.size());
    names.push_back(plain && taken.insert(function.name).second ? function.name : number);
  }
  return names;
}

std::string SimulatedImage(const std::vector<trace::Function>& functions) {
  std::string text = "simgpu-module 1\n";
  const std::vector<std::string> names = SimulatedNames(functions);
  for (size_t i = 0; i < functions.size(); ++i) {
    text += "kernel " + names[i];
    std::string sizes;
    for (const trace::Parameter& piece : Pieces(functions[i]))
      sizes += (sizes.empty() ? "" : ",") + std::to_string(piece.bytes);
    if (!sizes.empty()) text += " params " + sizes;
    text += "\n";
  }
  return text;
}

}  // namespace sluice::replay
