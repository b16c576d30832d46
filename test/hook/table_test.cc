// The hook table against the toolkit: every function of cudaTypedefs.h is hooked or passed through with a reason, with
// the same version and type. Also the table's choice for cuGetProcAddress.
#include "hooklib/dispatch/table.h"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/shim/engine_abi.h"
// After cuda_api.h, which fixes how cuda.h names things.
// clang-format off
#include <cudaTypedefs.h>
// clang-format on

namespace {

// cudaTypedefs.h has no name for the per-thread form of cuGetProcAddress, whose type is the same.
using PFN_cuGetProcAddress_v12000_ptsz = PFN_cuGetProcAddress_v12000;
// An older toolkit has no names for the types of newer functions, which hooklib/dispatch/cuda_newer.h declares.
#if CUDA_VERSION < 13010
using PFN_cuLaunchHostFunc_v13010 = decltype(&::cuLaunchHostFunc_v2);
using PFN_cuLaunchHostFunc_v13010_ptsz = decltype(&::cuLaunchHostFunc_v2_ptsz);
using PFN_cuStreamBeginCaptureToCig_v13010 = decltype(&::cuStreamBeginCaptureToCig);
using PFN_cuStreamBeginCaptureToCig_v13010_ptsz = decltype(&::cuStreamBeginCaptureToCig_ptsz);
using PFN_cuStreamEndCaptureToCig_v13010 = decltype(&::cuStreamEndCaptureToCig);
using PFN_cuStreamEndCaptureToCig_v13010_ptsz = decltype(&::cuStreamEndCaptureToCig_ptsz);
using PFN_cuMulticastBindMem_v13010 = decltype(&::cuMulticastBindMem_v2);
using PFN_cuMulticastBindAddr_v13010 = decltype(&::cuMulticastBindAddr_v2);
using PFN_cuGraphExecGetId_v13010 = decltype(&::cuGraphExecGetId);
#endif
#if CUDA_VERSION < 13020
using PFN_cuMemcpyWithAttributesAsync_v13020 = decltype(&::cuMemcpyWithAttributesAsync);
using PFN_cuMemcpyWithAttributesAsync_v13020_ptsz = decltype(&::cuMemcpyWithAttributesAsync_ptsz);
using PFN_cuMemcpy3DWithAttributesAsync_v13020 = decltype(&::cuMemcpy3DWithAttributesAsync);
using PFN_cuMemcpy3DWithAttributesAsync_v13020_ptsz = decltype(&::cuMemcpy3DWithAttributesAsync_ptsz);
using PFN_cuGraphNodeGetParams_v13020 = decltype(&::cuGraphNodeGetParams);
#endif
#if CUDA_VERSION < 13030
using PFN_cuStreamBeginRecaptureToGraph_v13030 = decltype(&::cuStreamBeginRecaptureToGraph);
using PFN_cuStreamBeginRecaptureToGraph_v13030_ptsz = decltype(&::cuStreamBeginRecaptureToGraph_ptsz);
#endif
#if CUDA_VERSION < 13040
using PFN_cuGraphAddNode_v13040 = decltype(&::cuGraphAddNode_v3);
using PFN_cuGraphNodeSetParams_v13040 = decltype(&::cuGraphNodeSetParams_v2);
using PFN_cuMemGetLocationInfo_v13040 = decltype(&::cuMemGetLocationInfo);
#endif
#if CUDA_VERSION < 13050
using PFN_cuFabricCpyBatchAsync_v13050 = decltype(&::cuFabricCpyBatchAsync);
using PFN_cuFabricCpyBatchAsync_v13050_ptsz = decltype(&::cuFabricCpyBatchAsync_ptsz);
using PFN_cuTensorMapSetAllocationClass_v13050 = decltype(&::cuTensorMapSetAllocationClass);
#endif

#define TYPE_ANY(base, version) PFN_##base##_v##version
#define TYPE_LEGACY(base, version) PFN_##base##_v##version
#define TYPE_PTSZ(base, version) PFN_##base##_v##version##_ptsz
#define TYPE_PTDS(base, version) PFN_##base##_v##version##_ptds
#define SLUICE_HOOK(elf_name, base, version, flavour, category) \
  static_assert(std::is_same_v<decltype(&::elf_name), TYPE_##flavour(base, version)>, #elf_name);
#define SLUICE_PASS(elf_name, base, version, flavour, reason) \
  static_assert(std::is_same_v<decltype(&::elf_name), TYPE_##flavour(base, version)>, #elf_name);
#include "hooklib/hooks.def"

struct Function {
  std::string base;
  int version;
  std::string flavour;  // "", "_ptsz", "_ptds"
  auto operator<=>(const Function&) const = default;
};

std::string Describe(const Function& f) { return "PFN_" + f.base + "_v" + std::to_string(f.version) + f.flavour; }

std::set<Function> FunctionsOf(const std::string& text) {
  std::set<Function> functions;
  const std::regex declaration(R"(\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\()");
  for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at) {
    functions.insert({(*at)[1], std::stoi((*at)[2]), (*at)[3]});
  }
  return functions;
}

std::string FlavourSuffix(std::string_view flavour) {
  if (flavour == "PTSZ") return "_ptsz";
  if (flavour == "PTDS") return "_ptds";
  return "";
}

std::set<Function> Rows() {
  std::set<Function> rows;
#define SLUICE_HOOK(elf_name, base, version, flavour, category) rows.insert({#base, version, FlavourSuffix(#flavour)});
#define SLUICE_PASS(elf_name, base, version, flavour, reason) rows.insert({#base, version, FlavourSuffix(#flavour)});
#include "hooklib/hooks.def"
  return rows;
}

std::vector<std::string> Prefixes() {
  return {
#define SLUICE_PASS_PREFIX(base_prefix, reason) #base_prefix,
#include "hooklib/hooks.def"
  };
}

// The functions that no row covers.
std::vector<std::string> Uncovered(const std::set<Function>& functions) {
  const auto rows = Rows();
  const auto prefixes = Prefixes();
  std::set<std::string> with_rows;
  for (const auto& row : rows) with_rows.insert(row.base);
  std::vector<std::string> uncovered;
  for (const auto& f : functions) {
    if (rows.contains(f)) continue;
    // A prefix does not excuse a new version of something that is hooked.
    const bool family = !with_rows.contains(f.base) &&
                        std::any_of(prefixes.begin(), prefixes.end(),
                                    [&](const std::string& prefix) { return f.base.starts_with(prefix); });
    if (!family) uncovered.push_back(Describe(f));
  }
  return uncovered;
}

std::string Toolkit() {
  std::ifstream file(SLUICE_CUDA_TYPEDEFS);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A driver whose functions are distinct addresses.
void* Numbered(void* missing, const char* name) {
  static std::array<char, 4096> places;
  static std::map<std::string, void*> numbers;
  if (static_cast<std::set<std::string>*>(missing)->contains(name)) return nullptr;
  auto& number = numbers[name];
  if (number == nullptr) number = &places.at(numbers.size());
  return number;
}

void BindNumbered() {
  static std::set<std::string> missing{"cuMemAdvise_v2"};
  sluice::BindReal(&Numbered, &missing);
  REQUIRE(sluice::RealBound());
}

int IndexOf(std::string_view elf_name) {
  static constexpr std::string_view kNames[] = {
#define SLUICE_HOOK(name, base, version, flavour, category) #name,
#include "hooklib/hooks.def"
  };
  const auto* const at = std::find(std::begin(kNames), std::end(kNames), elf_name);
  return at == std::end(kNames) ? -1 : static_cast<int>(at - std::begin(kNames));
}

}  // namespace

TEST_CASE("every function of the toolkit is hooked or passed through with a reason") {
  const auto functions = FunctionsOf(Toolkit());
  REQUIRE(functions.size() > 600);
  const auto uncovered = Uncovered(functions);
  for (const auto& name : uncovered) UNSCOPED_INFO("no row of hooks.def covers " << name);
  CHECK(uncovered.empty());
}

TEST_CASE("the parity check finds functions that a newer toolkit would add") {
  const auto functions = FunctionsOf(
      "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v14000)(CUdeviceptr *dptr);\n"
      "typedef CUresult (CUDAAPI *PFN_cuMemFrobnicateAsync_v14000_ptsz)(CUstream s);\n"
      "typedef CUresult (CUDAAPI *PFN_cuGraphAddFrobNode_v14000)(CUgraph g);\n"
      "typedef CUresult (CUDAAPI *PFN_cuOccupancyFrob_v14000)(void);\n");
  REQUIRE(functions.size() == 4);
  CHECK(Uncovered(functions) == std::vector<std::string>{"PFN_cuGraphAddFrobNode_v14000", "PFN_cuMemAlloc_v14000",
                                                         "PFN_cuMemFrobnicateAsync_v14000_ptsz"});
}

TEST_CASE("the hash of shim's and engine's tables depends on names and order") {
  const auto hash = [](std::initializer_list<const char*> names) {
    uint64_t h = 0;
    for (const char* name : names) h = sluice_table_hash(h, name);
    return h;
  };
  CHECK(hash({"a", "b"}) == hash({"a", "b"}));
  CHECK(hash({"a", "b"}) != hash({"b", "a"}));
  CHECK(hash({"a", "b"}) != hash({"ab"}));
  CHECK(hash({"a", "b"}) != hash({"a", "b", "c"}));
}

TEST_CASE("every row is chosen for its own name, version and flavour") {
  BindNumbered();
  struct Row {
    const char *name, *base;
    int version;
    sluice::Flavour flavour;
  };
  const std::vector<Row> rows{
#define SLUICE_HOOK(elf_name, base, version, flavour, category) {#elf_name, #base, version, sluice::Flavour::flavour},
#include "hooklib/hooks.def"
  };
  REQUIRE(rows.size() == sluice::HookCount());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(std::string_view(sluice::HookName(i)) == rows[i].name);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (sluice::RealOf(i) == nullptr) continue;  // this driver lacks it
    INFO(row.name);
    const bool per_thread = row.flavour == sluice::Flavour::PTSZ || row.flavour == sluice::Flavour::PTDS;
    CHECK(sluice::EntryForRequest(row.base, row.version, per_thread) == sluice::Entry(i));
    CHECK(sluice::EntryForPointer(sluice::RealOf(i)) == sluice::Entry(i));
  }
}

TEST_CASE("a request gets the newest signature of its version") {
  BindNumbered();
  const auto entry = [](std::string_view name) {
    INFO(name);
    REQUIRE(IndexOf(name) >= 0);
    return sluice::Entry(static_cast<std::size_t>(IndexOf(name)));
  };
  CHECK(sluice::EntryForRequest("cuMemAlloc", 13000, false) == entry("cuMemAlloc_v2"));
  CHECK(sluice::EntryForRequest("cuMemAlloc", 3010, false) == entry("cuMemAlloc"));
  CHECK(sluice::EntryForRequest("cuMemAlloc", 13000, true) == entry("cuMemAlloc_v2"));
  CHECK(sluice::EntryForRequest("cuLaunchKernel", 13000, false) == entry("cuLaunchKernel"));
  CHECK(sluice::EntryForRequest("cuLaunchKernel", 13000, true) == entry("cuLaunchKernel_ptsz"));
  CHECK(sluice::EntryForRequest("cuLaunchKernel", 6050, true) == entry("cuLaunchKernel"));
  CHECK(sluice::EntryForRequest("cuMemcpyHtoD", 13000, true) == entry("cuMemcpyHtoD_v2_ptds"));
  CHECK(sluice::EntryForRequest("cuMemPrefetchAsync", 12010, true) == entry("cuMemPrefetchAsync_ptsz"));
  CHECK(sluice::EntryForRequest("cuMemPrefetchAsync", 12020, true) == entry("cuMemPrefetchAsync_v2_ptsz"));
  CHECK(sluice::EntryForRequest("cuGetProcAddress", 11030, false) == entry("cuGetProcAddress"));
  CHECK(sluice::EntryForRequest("cuGetProcAddress", 12000, false) == entry("cuGetProcAddress_v2"));
  CHECK(sluice::EntryForRequest("cuGetProcAddress", 12000, true) == entry("cuGetProcAddress_v2_ptsz"));
}

static const int g_other_pointer = 0;

TEST_CASE("requests without a hooked row keep the driver's answer") {
  BindNumbered();
  CHECK(sluice::EntryForRequest("cuNoSuchFunction", 13000, false) == nullptr);
  CHECK(sluice::EntryForRequest("cuMemAlloc_v2", 13000, false) == nullptr);  // not a base name
  CHECK(sluice::EntryForRequest("", 13000, false) == nullptr);
  CHECK(sluice::EntryForRequest("cuMemAllocAsync", 11010, false) == nullptr);  // came with 11.2
  CHECK(sluice::EntryForRequest("cuMemcpyHtoD", 3010, false) == nullptr);      // a 32-bit form, passed through
  CHECK(sluice::EntryForPointer(nullptr) == nullptr);
  CHECK(sluice::EntryForPointer(&g_other_pointer) == nullptr);
}

TEST_CASE("a version that the driver lacks is never handed out") {
  BindNumbered();  // without cuMemAdvise_v2
  CHECK(sluice::EntryForRequest("cuMemAdvise", 13000, false) ==
        sluice::Entry(static_cast<std::size_t>(IndexOf("cuMemAdvise"))));
}
