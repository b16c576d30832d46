#include "webhook/decision/claim_shares.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/claims/parameters.h"
#include "sluice/names.h"
#include "webhook/decision/claim_patch.h"

namespace sluice::webhook {
namespace {

std::string Of(const Container& c) { return " (container '" + c.name + "')"; }

// False: denied.
bool CheckSettings(const RequestedShare& r, const std::string& preload, Findings& findings) {
  const Container& c = *r.container;
  if (r.settings.priority == settings::Priority::kOpportunistic) {
    findings.Deny(Rule::kClaimOnly,
                  SLUICE_DOMAIN "/" SLUICE_KEY_PRIORITY ": 'opportunistic' of container '" + c.name +
                      "' is not accepted, because the nodes are served by the DRA driver, and a claim always books its "
                      "memory; accepted: guaranteed");
    if (findings.IsEnabled(Rule::kClaimOnly)) return false;
  }
  if (preload.empty() || claims::IsPreload(preload)) return true;
  findings.Deny(Rule::kClaimOnly, c.field + ".env (LD_PRELOAD of container '" + c.name +
                                      "'): the DRA driver puts sluice's library in front of it, and cannot do so for "
                                      "this value; accepted: paths of libraries, separated by ':', up to " +
                                      std::to_string(claims::kMaxPreload) +
                                      " printable characters without $ and quotes");
  return !findings.IsEnabled(Rule::kClaimOnly);
}

// False: there is no claim. A template may wait for nodes that an autoscaler adds.
bool CheckClaim(const RequestedShare& r, const ShareClaim& claim, const Input& input, Findings& findings,
                Decision& out) {
  if (claim.error.empty()) return true;
  if (claim.is_unknown && input.mode == Mode::kTemplate) {
    out.warnings.push_back(r.sized_by + ": " + claim.error);
    return false;
  }
  const std::string field = claim.is_compute        ? SLUICE_DOMAIN "/" SLUICE_KEY_COMPUTE_LIMIT
                            : claim.is_memory_limit ? SLUICE_DOMAIN "/" SLUICE_KEY_MEMORY_LIMIT
                                                    : r.sized_by;
  findings.Deny(claim.is_memory_limit ? Rule::kLimitBelowBudget : Rule::kClaimSize,
                field + ": " + claim.error + Of(*r.container));
  return false;
}

std::string ByName(std::string_view key, const Container& c) {
  return std::string(key) + "." SLUICE_DOMAIN "/" + c.name;
}

}  // namespace

void GrantClaim(const PodView& view, const RequestedShare& r, uint32_t percent, const Input& input, Findings& findings,
                Decision& out, std::vector<GrantedShare>& shares) {
  ShareClaimInput wanted;
  wanted.settings = r.settings;
  if (percent > 0) wanted.settings.gpu_percent = percent;
  wanted.cards = CardsOf(r.settings);
  wanted.preload = OwnPreload(*r.container);
  wanted.assumed = input.config.assumed_gpu_memory;
  const uint32_t cards = std::max(wanted.cards, percent / SLUICE_UNITS_PER_GPU);
  wanted.sizes = FindSizes(*view.spec, input.nodes, cards);
  if (!CheckSettings(r, wanted.preload, findings)) return;
  ShareClaim claim = RequestShare(wanted);
  const bool is_known = CheckClaim(r, claim, input, findings, out);
  if (!is_known && input.mode != Mode::kTemplate) return;
  GrantedShare share{&r, percent, wanted.cards};
  if (r.sized_by == SLUICE_RESOURCE || r.sized_by.starts_with("SLUICE_")) {
    const std::string_view key = r.settings.gpu_memory ? SLUICE_KEY_GPU_MEMORY : SLUICE_KEY_GPU_FRACTION;
    share.size_annotation = ByName(key, *r.container);
  }
  if (is_known) share.claim = MakeTemplate(input.name_space, std::move(claim.spec));
  if (percent == 0 && input.mode == Mode::kTemplate) {  // for queues
    const MemoryShare units = ShareOfMemory(r.settings.gpu_memory.value(), FindGpus(*view.spec, input.nodes, cards),
                                            input.config.assumed_gpu_memory);
    share.percent = units.percent.value_or(0);
    share.is_computed = true;
  }
  shares.push_back(std::move(share));
}

void KeepSizes(const std::vector<GrantedShare>& shares, Patch& patch) {
  constexpr char kAnnotations[] = "/metadata/annotations";
  for (const GrantedShare& s : shares) {
    if (s.size_annotation.empty()) continue;
    const settings::Settings& given = s.requested->settings;
    patch.Add(
        kAnnotations, s.size_annotation,
        Quote(given.gpu_memory ? settings::FormatQuantity(*given.gpu_memory) : settings::FormatFraction(s.percent)));
    const bool is_counted = std::ranges::any_of(s.requested->sources, [](const SettingSource& source) {
      return source.key->id == settings::Id::kGpuCount && !ParseOwnKey(source.field);
    });
    if (is_counted) {
      patch.Add(kAnnotations, ByName(SLUICE_KEY_GPU_COUNT, *s.requested->container), Quote(std::to_string(s.cards)));
    }
  }
}

void AddClaims(const PodView& view, const std::vector<GrantedShare>& shares, const Input& input, Findings& findings,
               Patch& patch, Decision& out) {
  std::vector<ClaimedContainer> claimed;
  for (const bool is_init : {false, true}) {
    for (const GrantedShare& s : shares) {
      const Container& c = *s.requested->container;
      if (s.claim.name.empty() || (c.kind == ContainerKind::kInit) != is_init) continue;
      std::string entry = ClaimEntryName(c.name);
      if (is_init) {
        const auto same = std::ranges::find_if(claimed, [&](const ClaimedContainer& other) {
          return other.template_name == s.claim.name && other.container->kind != ContainerKind::kSidecar;
        });
        if (same != claimed.end()) entry = same->entry;
      }
      claimed.push_back({&c, std::move(entry), s.claim.name});
    }
  }
  InjectClaims(view, claimed, findings, patch);
  if (input.mode != Mode::kCreate || !findings.IsEnabled(Rule::kSetClaim)) return;
  for (const GrantedShare& s : shares) {
    if (s.claim.name.empty() || std::ranges::find(out.claims, s.claim.name, &ClaimTemplate::name) != out.claims.end())
      continue;
    out.claims.push_back(s.claim);
  }
}

}  // namespace sluice::webhook
