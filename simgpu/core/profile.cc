#include "profile.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <variant>
#include <vector>

namespace simgpu {
namespace {

struct Key {
  const char* name;
  std::variant<std::string Profile::*, int64_t Profile::*, double Profile::*> member;
};

#define KEY(x) \
  Key { #x, &Profile::x }
const Key kKeys[] = {KEY(name),
                     KEY(gpus),
                     KEY(memory),
                     KEY(reserve),
                     KEY(context_bytes),
                     KEY(driver),
                     KEY(multiprocessors),
                     KEY(concurrent_managed_access),
                     KEY(host_page_tables),
                     KEY(ecc),
                     KEY(numa),
                     KEY(clique_cards),
                     KEY(copy_gbps),
                     KEY(copy_duplex_gbps),
                     KEY(pageable_gbps),
                     KEY(device_copy_gbps),
                     KEY(peer_gbps),
                     KEY(prefetch_in_2m_gbps),
                     KEY(prefetch_in_16m_gbps),
                     KEY(prefetch_in_64m_gbps),
                     KEY(prefetch_in_4g_gbps),
                     KEY(prefetch_out_2m_gbps),
                     KEY(prefetch_out_gbps),
                     KEY(batch_in_gain),
                     KEY(batch_out_gain),
                     KEY(managed_duplex_gbps),
                     KEY(fault_duplex_gbps),
                     KEY(request_out_gbps),
                     KEY(requests_out_gbps),
                     KEY(requests_duplex_gbps),
                     KEY(fault_gbps),
                     KEY(fault_elementwise_gbps),
                     KEY(fault_lists_gbps),
                     KEY(fault_reduction_gbps),
                     KEY(fault_product_gbps),
                     KEY(fault_few_rows_gbps),
                     KEY(fault_convolution_gbps),
                     KEY(populate_gbps),
                     KEY(populate_host_gbps),
                     KEY(evict_gbps),
                     KEY(remote_gbps),
                     KEY(remote_one_way_gbps),
                     KEY(filter_rereads),
                     KEY(duplicate_write_ns_per_byte),
                     KEY(read_mostly_first_ns_per_block),
                     KEY(read_mostly_moved_ns_per_block),
                     KEY(read_mostly_host_ns_per_block),
                     KEY(read_mostly_card_ns_per_block),
                     KEY(launch_host_ns),
                     KEY(kernel_gap_ns),
                     KEY(call_host_ns),
                     KEY(event_host_ns),
                     KEY(copy_host_ns),
                     KEY(copy_latency_ns),
                     KEY(malloc_host_ns),
                     KEY(managed_malloc_host_ns),
                     KEY(free_host_ns),
                     KEY(pool_malloc_host_ns),
                     KEY(prefetch_deferred_host_ns),
                     KEY(prefetch_batch_piece_host_ns),
                     KEY(prefetch_call_ns),
                     KEY(prefetch_resident_block_ns),
                     KEY(prefetch_queue),
                     KEY(launch_queue),
                     KEY(fault_discarded_gbps),
                     KEY(discard_ns_per_block),
                     KEY(discard_host_ns_per_block),
                     KEY(advise_host_ns),
                     KEY(advise_ns_per_block),
                     KEY(graph_launch_host_ns),
                     KEY(graph_node_ns),
                     KEY(vmm_map_ns),
                     KEY(vmm_create_ns),
                     KEY(vmm_create_host_ns_per_mib),
                     KEY(host_func_ns),
                     KEY(request_begin_ns),
                     KEY(host_alloc_ns_per_mib),
                     KEY(content_bytes)};
#undef KEY

std::string Trim(const std::string& s) {
  const auto from = s.find_first_not_of(" \t\r");
  return from == std::string::npos ? "" : s.substr(from, s.find_last_not_of(" \t\r") - from + 1);
}

// A number >= 0 with an optional unit; false when it is anything else.
bool ParseNumber(const std::string& text, double* out) {
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *out < 0 || !std::isfinite(*out)) return false;
  const std::string unit = Trim(end);
  const std::string letters = "KMG";
  if (unit.empty()) return true;
  const auto power = letters.find(unit[0]);
  if (power == std::string::npos || (unit.size() != 1 && unit.substr(1) != "i")) return false;
  *out *= std::pow(unit.size() == 1 ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  return true;
}

double SlowestFaults(const Profile& p) {
  double slowest = p.fault_gbps;
  for (int kind = SIMGPU_UNKNOWN; kind <= SIMGPU_CONVOLUTION; ++kind)
    slowest = std::min(slowest, p.FaultGbps(static_cast<simgpu_kernel>(kind)));
  return slowest;
}

std::string Check(const Profile& p) {
  if (p.gpus < 1 || p.gpus > 16) return "gpus: 1 to 16 are accepted";
  if (p.driver != 535 && p.driver != 550 && p.driver != 580) return "driver: 535, 550 and 580 are accepted";
  if (p.memory < (64 << 20)) return "memory: at least 64Mi is accepted";
  if (p.reserve + p.context_bytes >= p.memory) return "reserve + context_bytes must be less than memory";
  if (p.copy_gbps <= 0 || p.fault_discarded_gbps <= 0 || SlowestFaults(p) <= 0 || p.populate_gbps <= 0 ||
      p.populate_host_gbps <= 0 || p.evict_gbps <= 0 || p.remote_gbps <= 0 || p.remote_one_way_gbps <= 0 ||
      p.pageable_gbps <= 0 || p.prefetch_in_2m_gbps <= 0 || p.prefetch_out_2m_gbps <= 0 || p.managed_duplex_gbps <= 0 ||
      p.fault_duplex_gbps <= 0 || p.request_out_gbps <= 0 || p.requests_out_gbps <= 0 || p.requests_duplex_gbps <= 0 ||
      p.copy_duplex_gbps <= 0 || p.device_copy_gbps <= 0 || p.peer_gbps <= 0) {
    return "rates must be greater than 0";
  }
  return "";
}

std::string LibraryFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&LibraryFolder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::string Profile::DriverVersion() const {
  return driver >= 580 ? "580.159.03" : driver >= 550 ? "550.163.01" : "535.261.03";
}

double Profile::PrefetchRate(bool in, uint64_t piece) const {
  // Straight lines over the logarithm of the size, through the measured points.
  struct Point {
    double log2_size, rate;
  };
  const Point points_in[] = {
      {21, prefetch_in_2m_gbps}, {24, prefetch_in_16m_gbps}, {26, prefetch_in_64m_gbps}, {32, prefetch_in_4g_gbps}};
  const Point points_out[] = {
      {21, prefetch_out_2m_gbps}, {24, prefetch_out_gbps}, {26, prefetch_out_gbps}, {32, prefetch_out_gbps}};
  const Point* p = in ? points_in : points_out;
  const double x = std::log2(static_cast<double>(piece < 1 ? 1 : piece));
  if (x <= p[0].log2_size) return p[0].rate;
  for (int i = 1; i < 4; ++i) {
    if (x > p[i].log2_size) continue;
    const double part = (x - p[i - 1].log2_size) / (p[i].log2_size - p[i - 1].log2_size);
    return p[i - 1].rate + part * (p[i].rate - p[i - 1].rate);
  }
  return p[3].rate;
}

std::string LoadProfile(const std::string& path, Profile* profile) {
  std::ifstream in(path);
  std::error_code ignored;  // a folder opens, and reads as an empty file
  if (!in || std::filesystem::is_directory(path, ignored)) return path + ": the profile cannot be read";
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string where = path + ":" + std::to_string(number) + ": ";
    line = Trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto equals = line.find('=');
    if (equals == std::string::npos) return where + "'" + line + "' is not 'key = value'";
    const std::string key = Trim(line.substr(0, equals)), value = Trim(line.substr(equals + 1));
    bool known = false;
    for (const Key& k : kKeys) {
      if (key != k.name) continue;
      known = true;
      if (const auto* text = std::get_if<std::string Profile::*>(&k.member)) {
        profile->*(*text) = value;
        continue;
      }
      double number_value = 0;
      if (!ParseNumber(value, &number_value)) {
        return where + key + " = '" + value + "': a number >= 0 is accepted, with K, M, G, Ki, Mi or Gi";
      }
      if (const auto* whole = std::get_if<int64_t Profile::*>(&k.member)) {
        profile->*(*whole) = static_cast<int64_t>(number_value);
      } else {
        profile->*(std::get<double Profile::*>(k.member)) = number_value;
      }
    }
    if (!known) {
      std::string names;
      for (const Key& k : kKeys) names += std::string(names.empty() ? "" : ", ") + k.name;
      return where + "unknown key '" + key + "'; accepted are " + names;
    }
  }
  const std::string wrong = Check(*profile);
  return wrong.empty() ? "" : path + ": " + wrong;
}

namespace {

// The profiles that are named without a folder.
std::string KnownProfiles(const std::string& folder) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) names.insert(entry.path().stem());
  std::string list;
  for (const std::string& name : names) list += ", " + name;
  return list;
}

}  // namespace

const Profile& TheProfile() {
  static const Profile* profile = [] {
    auto* p = new Profile;
    // The library of an older driver has its profile beside itself. SIMGPU_PROFILE's settings override it.
    const std::string own = LibraryFolder() + "/driver.profile";
    std::string wrong = access(own.c_str(), R_OK) == 0 ? LoadProfile(own, p) : "";
    if (!wrong.empty()) {
      std::fprintf(stderr, "simgpu: %s\n", wrong.c_str());
      std::_Exit(2);
    }
    const char* wanted = std::getenv("SIMGPU_PROFILE");
    if (wanted == nullptr || *wanted == '\0') return p;
    std::string path = wanted;
    if (path.find('/') == std::string::npos && path.find(".profile") == std::string::npos) {
      const std::string folder = LibraryFolder() + "/profiles";
      path = folder + "/" + path + ".profile";
      if (access(path.c_str(), R_OK) != 0) {
        std::fprintf(stderr, "simgpu: SIMGPU_PROFILE: '%s' is not accepted; accepted: a file%s\n", wanted,
                     KnownProfiles(folder).c_str());
        std::_Exit(2);
      }
    }
    wrong = LoadProfile(path, p);
    if (!wrong.empty()) {
      std::fprintf(stderr, "simgpu: SIMGPU_PROFILE: %s\n", wrong.c_str());
      std::_Exit(2);
    }
    return p;
  }();
  return *profile;
}

}  // namespace simgpu
