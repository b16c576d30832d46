#include "webhook/decision/share_claim.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "common/claims/parameters.h"
#include "sluice/names.h"

namespace sluice::webhook {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kMillionthsPerPercent = 10'000;
constexpr std::string_view kPrefix = "sluice-";  // of templates
constexpr size_t kHashDigits = 16;
constexpr char kRequest[] = "gpu";

// FNV-1a. A clash is found when the stored template is compared with the wanted one.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::string Hex(uint64_t value) {
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Cards of sizes that one alternative serves.
struct Group {
  std::vector<uint64_t> sizes;  // MiB, ascending
  uint64_t memory = 0;          // MiB on each card; 0: the whole card
  uint32_t compute = 1;         // percent
  bool is_rest = false;         // cards of no known size
};

// "'memoryMiB' in device.attributes['sluice.dev'] && device.attributes['sluice.dev'].memoryMiB in [81559]". Without the
// first part, a card of an older driver would end the scheduler's search with an error.
std::string SizeExpression(const std::vector<uint64_t>& sizes) {
  constexpr std::string_view kAttributes = "device.attributes['" SLUICE_DOMAIN "']";
  const std::string name = claims::kMemoryMiB;
  std::string list;
  for (const uint64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return "'" + name + "' in " + std::string(kAttributes) + " && " + std::string(kAttributes) + "." + name + " in [" +
         list + "]";
}

// The spec as an API server stores it whose feature gate DRAConsumableCapacity is off.
Json WithoutAmounts(Json spec) {
  if (spec.is_object()) {
    spec.erase("capacity");
    spec.erase("distinctAttribute");
  }
  if (spec.is_structured()) {
    for (Json& member : spec) member = WithoutAmounts(std::move(member));
  }
  return spec;
}

// Fewer groups: the two neighbours whose sizes differ least, relatively, become one, if they differ by a tenth at most.
bool MergeClosest(std::vector<std::vector<uint64_t>>& groups) {
  size_t best = 0;
  double closest = 1.1;
  for (size_t i = 0; i + 1 < groups.size(); ++i) {
    const double ratio = static_cast<double>(groups[i + 1].back()) / static_cast<double>(groups[i].front());
    if (ratio > closest) continue;
    closest = ratio;
    best = i + 1;
  }
  if (best == 0) return false;
  groups[best - 1].insert(groups[best - 1].end(), groups[best].begin(), groups[best].end());
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(best));
  return true;
}

std::string ListSizes(const std::vector<uint64_t>& sizes) {
  std::string out;
  for (size_t i = 0; i < sizes.size() && i < 2 * kMaxAlternatives; ++i) {
    out += (out.empty() ? "" : ", ") + settings::HumanBytes(sizes[i] * kMiB);
  }
  return out;
}

class Requester {
 public:
  explicit Requester(const ShareClaimInput& input) : in_(input), s_(input.settings) {}

  ShareClaim Run() {
    cards_ = in_.cards;
    percent_ = s_.gpu_percent.value_or(0);
    if (percent_ > SLUICE_UNITS_PER_GPU) {
      cards_ = percent_ / SLUICE_UNITS_PER_GPU;
      percent_ = SLUICE_UNITS_PER_GPU;
    }
    if (s_.compute_limit && *s_.compute_limit < kMillionthsPerPercent) {
      out_.is_compute = true;
      out_.error = "'" + settings::FormatShare(*s_.compute_limit) +
                   "' is below the smallest share of time that a claim has; accepted: at least 0.01";
      return std::move(out_);
    }
    std::vector<Group> groups = s_.gpu_memory ? ByBytes() : ByFraction();
    if (!out_.error.empty()) return std::move(out_);
    if (s_.memory_limit && !DropAboveLimit(groups)) return std::move(out_);
    Json request = {{"name", kRequest}};
    if (groups.size() == 1) {
      request["exactly"] = Exactly(groups.front());
    } else {
      request["firstAvailable"] = Json::array();
      for (size_t i = 0; i < groups.size(); ++i) {
        Json alternative = Exactly(groups[i]);
        alternative["name"] = "size-" + std::to_string(i);
        request["firstAvailable"].push_back(std::move(alternative));
      }
    }
    Json devices = {{"requests", Json::array({std::move(request)})}};
    if (cards_ > 1) {  // two shares of one card would meet the request, too
      devices["constraints"] =
          Json::array({{{"requests", Json::array({kRequest})}, {"distinctAttribute", SLUICE_DOMAIN "/uuid"}}});
    }
    if (Json parameters = Parameters(); !parameters.empty()) {
      devices["config"] =
          Json::array({{{"opaque", {{"driver", SLUICE_DOMAIN}, {"parameters", std::move(parameters)}}}}});
    }
    out_.spec = {{"devices", std::move(devices)}};
    return std::move(out_);
  }

 private:
  // Whole percent: the requested time, rounded up, at most compute-limit; else `fallback`.
  uint32_t Compute(uint64_t fallback) const {
    uint64_t percent =
        s_.compute_request ? (*s_.compute_request + kMillionthsPerPercent - 1) / kMillionthsPerPercent : fallback;
    if (s_.compute_limit) percent = std::min<uint64_t>(percent, *s_.compute_limit / kMillionthsPerPercent);
    return static_cast<uint32_t>(std::clamp<uint64_t>(percent, 1, SLUICE_UNITS_PER_GPU));
  }

  std::vector<Group> ByBytes() {
    const uint64_t memory = (s_.gpu_memory.value() + kMiB - 1) / kMiB;
    std::vector<Group> out;
    for (const uint64_t size : in_.sizes) {
      if (size < memory) continue;
      // Rounded down: shares whose bytes fit a card together must not be refused by its time.
      const uint32_t compute = Compute(memory * SLUICE_UNITS_PER_GPU / size);
      if (!out.empty() && out.back().compute == compute) {
        out.back().sizes.push_back(size);
      } else {
        out.push_back({{size}, memory, compute});
      }
    }
    if (out.empty() && !in_.sizes.empty()) {
      out_.error = "'" + settings::FormatQuantity(s_.gpu_memory.value()) +
                   "' exceeds the memory of every GPU that the pod may get: " + ListSizes(in_.sizes) +
                   "; accepted: at most " + settings::HumanBytes(in_.sizes.back() * kMiB) +
                   ", or a nodeSelector that matches larger GPUs";
      return out;
    }
    // Cards of other sizes, which may come with a new node. Their guaranteed time is the smallest of those above.
    const uint32_t least = out.empty() ? Compute(1) : out.back().compute;
    if (out.size() <= 1) return {{{}, memory, least}};
    while (out.size() >= kMaxAlternatives) {  // neighbours differ by little time
      Group& last = out[out.size() - 2];
      last.sizes.insert(last.sizes.end(), out.back().sizes.begin(), out.back().sizes.end());
      last.compute = out.back().compute;
      out.pop_back();
    }
    out.push_back({{}, memory, least, true});
    return out;
  }

  std::vector<Group> ByFraction() {
    const uint32_t compute = Compute(percent_);
    if (in_.sizes.empty()) {
      if (percent_ == SLUICE_UNITS_PER_GPU) return {{{}, 0, compute}};
      if (in_.assumed) return {{{}, std::max<uint64_t>(*in_.assumed / kMiB * percent_ / 100, 1), compute}};
      out_.is_unknown = true;
      out_.error = "'" + settings::FormatFraction(percent_) +
                   "' cannot be converted into bytes, because no ResourceSlice of " SLUICE_DOMAIN
                   " shows a GPU that the pod may get; accepted: " SLUICE_KEY_GPU_MEMORY
                   ", a whole number of GPUs, a nodeSelector that matches a node with GPUs, or the chart's value "
                   "webhook.assumedGpuMemory";
      return {};
    }
    std::vector<std::vector<uint64_t>> sizes;
    sizes.reserve(in_.sizes.size());
    for (const uint64_t size : in_.sizes) sizes.push_back({size});
    while (sizes.size() > kMaxAlternatives && MergeClosest(sizes)) {
    }
    if (sizes.size() > kMaxAlternatives) {
      out_.error = "'" + settings::FormatFraction(percent_) + "' would be one of " + std::to_string(sizes.size()) +
                   " different amounts of memory, for GPUs of " + ListSizes(in_.sizes) +
                   "; accepted: a nodeSelector that matches GPUs of at most " + std::to_string(kMaxAlternatives) +
                   " sizes, or " SLUICE_KEY_GPU_MEMORY;
      return {};
    }
    std::vector<Group> out;
    for (std::vector<uint64_t>& group : sizes) {
      // Rounded down, so that a hundred hundredths fit.
      const uint64_t memory = std::max<uint64_t>(group.front() * percent_ / SLUICE_UNITS_PER_GPU, 1);
      out.push_back({std::move(group), memory, compute});
    }
    return out;
  }

  // A claim whose budget is above its limit would be refused by the driver.
  bool DropAboveLimit(std::vector<Group>& groups) {
    const uint64_t least = groups.front().memory, limit = s_.memory_limit.value();
    std::erase_if(groups, [&](const Group& group) { return group.memory * kMiB > limit; });
    if (!groups.empty()) return true;
    out_.is_memory_limit = true;
    out_.error = "'" + settings::FormatQuantity(limit) + "' is below the budget, which is " +
                 settings::HumanBytes(least * kMiB) + "; accepted: at least " + settings::FormatQuantity(least * kMiB);
    return false;
  }

  Json Exactly(const Group& group) const {
    Json amounts = {{claims::kCompute, std::to_string(group.compute)}};
    if (group.memory > 0) amounts[claims::kMemory] = settings::FormatQuantity(group.memory * kMiB);
    Json out = {{"deviceClassName", SLUICE_DOMAIN},
                {"allocationMode", "ExactCount"},
                {"count", cards_},
                {"capacity", {{"requests", std::move(amounts)}}}};
    if (!group.sizes.empty()) {
      out["selectors"] = Json::array({{{"cel", {{"expression", SizeExpression(group.sizes)}}}}});
    } else if (group.is_rest) {
      out["selectors"] = Json::array({{{"cel", {{"expression", "!(" + SizeExpression(in_.sizes) + ")"}}}}});
    }
    return out;
  }

  Json Parameters() const {
    Json out = Json::object();
    for (const auto& [name, value] : settings::Format(s_)) {
      if (const settings::Key* key = settings::Find(name); claims::IsAccepted(*key)) out[name] = value;
    }
    if (!in_.preload.empty()) out[claims::kPreload] = in_.preload;
    return out;
  }

  const ShareClaimInput& in_;
  const settings::Settings& s_;
  uint32_t cards_ = 1, percent_ = 0;
  ShareClaim out_;
};

}  // namespace

ShareClaim RequestShare(const ShareClaimInput& input) { return Requester(input).Run(); }

std::vector<uint64_t> FindSizes(const Json& spec, const Nodes& nodes, size_t at_least) {
  std::set<uint64_t> out;
  for (const auto& [name, node] : nodes) {
    if (node.offered.empty() || node.offered.size() < at_least || !PodMatchesNode(spec, node)) continue;
    out.insert(node.offered.begin(), node.offered.end());
  }
  return {out.begin(), out.end()};
}

std::vector<uint64_t> ReadSizes(const Json& slice) {
  std::vector<uint64_t> out;
  const Json* spec = Member(slice, "spec");
  const Json* devices = spec == nullptr ? nullptr : Member(*spec, "devices");
  if (devices == nullptr || !devices->is_array() || Text(*spec, "driver") != SLUICE_DOMAIN) return out;
  for (const Json& device : *devices) {
    const Json* attributes = Member(device, "attributes");
    const Json* size = attributes == nullptr ? nullptr : Member(*attributes, claims::kMemoryMiB);
    const Json* number = size == nullptr ? nullptr : Member(*size, "int");
    const int64_t mib = number != nullptr && number->is_number_integer() ? number->get<int64_t>() : 0;
    if (mib > 0) out.push_back(static_cast<uint64_t>(mib));
  }
  return out;
}

ClaimTemplate MakeTemplate(std::string_view name_space, Json spec) {
  ClaimTemplate out;
  out.name = std::string(kPrefix) + Hex(Hash(spec.dump()));
  out.object = {
      {"apiVersion", "resource.k8s.io/v1"},
      {"kind", "ResourceClaimTemplate"},
      {"metadata",
       {{"name", out.name}, {"namespace", name_space}, {"labels", {{"app.kubernetes.io/managed-by", "sluice"}}}}},
      {"spec", {{"spec", std::move(spec)}}}};
  return out;
}

bool IsTemplate(const Json& stored, const Json& wanted) {
  if (wanted.is_object()) {
    return stored.is_object() && std::ranges::all_of(wanted.items(), [&](const auto& member) {
             const Json* own = Member(stored, member.key());
             return own != nullptr && IsTemplate(*own, member.value());
           });
  }
  if (wanted.is_array()) {
    return stored.is_array() && std::ranges::equal(stored, wanted, IsTemplate);
  }
  return stored == wanted;
}

std::string TemplateProblem(const Json& stored, const Json& wanted) {
  if (IsTemplate(stored, wanted)) return {};
  if (IsTemplate(stored, WithoutAmounts(wanted))) {
    return "was stored without the amounts of memory and time, so that its pods would get whole GPUs: the feature gate "
           "DRAConsumableCapacity of the API server is off, or was when the template was made; accepted: the gate on, "
           "or "
           "Kubernetes 1.36, and no such object, since sluice makes it";
  }
  return "is not what this pod's share needs: another client has made it; accepted: no such object, since sluice makes "
         "it";
}

std::string ClaimEntryName(std::string_view container) {
  std::string out = std::string(claims::kEntryPrefix) + std::string(container);
  if (out.size() < claims::kMaxEntryName) return out;
  return out.substr(0, claims::kMaxEntryName - kHashDigits - 1) + "-" + Hex(Hash(container));
}

bool IsOwnEntry(const Json& entry) {
  const std::string_view name = Text(entry, "resourceClaimTemplateName");
  return Text(entry, "name").starts_with(claims::kEntryPrefix) && name.size() == kPrefix.size() + kHashDigits &&
         name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

bool HasOwnClaim(const Json& pod) {
  const Json* spec = Member(pod, "spec");
  const Json* entries = spec == nullptr ? nullptr : Member(*spec, "resourceClaims");
  return entries != nullptr && entries->is_array() && std::ranges::any_of(*entries, IsOwnEntry);
}

}  // namespace sluice::webhook
