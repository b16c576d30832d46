#include "trace/replay/image.h"

#include <catch2/catch_test_macros.hpp>
#include <regex>
#include <string>
#include <vector>

using sluice::replay::Image;
using sluice::replay::Pieces;
using sluice::trace::Function;
using sluice::trace::Parameter;

namespace {

// Where PTX puts the parameters that an image's only kernel declares.
std::vector<Parameter> Declared(const std::string& image) {
  std::vector<Parameter> out;
  uint32_t end = 0;
  const std::regex declaration(R"(\.param \.align (\d+) \.b8 p\d+\[(\d+)\])");
  for (std::sregex_iterator it(image.begin(), image.end(), declaration), none; it != none; ++it) {
    const auto align = static_cast<uint32_t>(std::stoul((*it)[1])), bytes = static_cast<uint32_t>(std::stoul((*it)[2]));
    end = (end + align - 1) / align * align;
    out.push_back({end, bytes});
    end += bytes;
  }
  return out;
}

}  // namespace

// The driver takes one value for each declared parameter, and the player passes one for each of Pieces(). One more or
// fewer would shift all later parameters.
TEST_CASE("kernels for a real GPU declare the parameters that they are launched with", "[replay]") {
  Function function;
  function.name = "f";
  SECTION("side by side") { function.parameters = {{0, 8}, {8, 4}, {16, 8}}; }
  SECTION("a gap that alignment does not explain") { function.parameters = {{0, 8}, {20, 4}, {24, 8}}; }
  SECTION("a struct at 64 behind a pointer, and one of odd length") {
    function.parameters = {{0, 8}, {64, 128}, {192, 33}};
  }
  SECTION("an empty parameter") { function.parameters = {{0, 8}, {8, 0}, {8, 4}}; }
  SECTION("none") {}
  const std::vector<Parameter> wanted = Pieces(function), declared = Declared(Image({function}));
  REQUIRE(declared.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(declared[i].offset == wanted[i].offset);
    CHECK(declared[i].bytes == wanted[i].bytes);
  }
  for (const Parameter& recorded : function.parameters) {
    bool covered = recorded.bytes == 0;
    for (const Parameter& piece : declared)
      covered |= piece.offset <= recorded.offset && recorded.offset < piece.offset + piece.bytes;
    CHECK(covered);
  }
}
