#include "kube/lease.h"

#include <ctime>
#include <nlohmann/json.hpp>

namespace sluice::kube {
namespace {

// In the API's MicroTime format. For people only: no code compares it.
std::string MicroTime() {
  const auto us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const auto seconds = static_cast<std::time_t>(us / 1000000);
  std::tm tm{};
  gmtime_r(&seconds, &tm);
  char text[32];
  const size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
  return std::string(text, length) + "." + std::to_string(1000000 + us % 1000000).substr(1) + "Z";
}

std::string Folder(const LeaseOptions& o) {
  return "/apis/coordination.k8s.io/v1/namespaces/" + o.name_space + "/leases";
}

Json& Spec(Json& lease) {
  Json& spec = lease["spec"];
  if (!spec.is_object()) spec = Json::object();
  return spec;
}

}  // namespace

Lease::Lease(Client& client, LeaseOptions options) : client_(client), options_(std::move(options)) {}

absl::Status Lease::Tick(Time now) {
  auto lease = client_.Get(Folder(options_) + "/" + options_.name);
  if (absl::IsNotFound(lease.status())) {
    lease = client_.Create(
        Folder(options_),
        {{"apiVersion", "coordination.k8s.io/v1"}, {"kind", "Lease"}, {"metadata", {{"name", options_.name}}}});
  }
  if (!lease.ok()) return lease.status();
  const std::string version = lease->at("metadata").value("resourceVersion", "");
  if (version != version_) {
    version_ = version;
    changed_ = now;
  }
  const std::string holder = Spec(*lease).value("holderIdentity", "");
  held_ = holder == options_.identity;
  if (!held_ && !holder.empty() && now - changed_ < options_.duration) return absl::OkStatus();
  return Write(*lease, now);
}

absl::Status Lease::Write(Json& lease, Time now) {
  Json& spec = Spec(lease);
  const std::string time = MicroTime();
  if (!held_) {
    spec["acquireTime"] = time;
    spec["leaseTransitions"] = spec.value("leaseTransitions", 0) + 1;
  }
  spec["holderIdentity"] = options_.identity;
  spec["leaseDurationSeconds"] = options_.duration.count();
  spec["renewTime"] = time;
  const auto written = client_.Update(Folder(options_) + "/" + options_.name, lease);
  held_ = written.ok();
  if (held_) renewed_ = now;
  // Aborted: another replica wrote first and holds the Lease, which the next Tick sees.
  return absl::IsAborted(written.status()) ? absl::OkStatus() : written.status();
}

// Two thirds, because other replicas count the whole duration from the moment they saw our last write, which is after
// `renewed_`.
bool Lease::Held(Time now) const { return held_ && now - renewed_ < options_.duration * 2 / 3; }

void Lease::Release() {
  if (!held_) return;
  held_ = false;
  (void)client_.Modify(Folder(options_) + "/" + options_.name, [&](Json& lease) {
    Json& spec = Spec(lease);
    if (spec.value("holderIdentity", "") != options_.identity) return false;
    spec["holderIdentity"] = "";
    return true;
  });
}

}  // namespace sluice::kube
