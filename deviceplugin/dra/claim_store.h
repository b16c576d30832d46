// The prepared claims of this node as files: <alloc>/claim-<uid>/allocation.json, which the agent serves, and the CDI
// spec of the claim. These files are the driver's checkpoint. A folder is named by the claim's uid, which no other
// claim ever has, so that to prepare a claim again finds it.
#ifndef SLUICE_DEVICEPLUGIN_DRA_CLAIM_STORE_H_
#define SLUICE_DEVICEPLUGIN_DRA_CLAIM_STORE_H_

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/selinux/container_label.h"
#include "deviceplugin/decide/response.h"
#include "deviceplugin/dra/claim.h"

namespace sluice::deviceplugin::dra {

inline constexpr std::string_view kClaimIdPrefix = "claim-";
inline constexpr std::string_view kClaimCdiKind = "sluice.dev/claim";

struct PreparedClaim {
  ClaimShare share;
  DriverAccess access = DriverAccess::kOwn;
  std::string lib_dir;  // host path of the hook library that its containers mount
  std::chrono::system_clock::time_point made;
};

// Whether uid can name a folder and a CDI device: letters, digits and '-', at most 57 of them.
bool IsClaimUid(std::string_view uid);

// The allocation's id.
std::string ClaimId(std::string_view uid);

// The names for kubelet: the claim's own device, which mounts library and socket, and the card's. A device for
// monitoring gets no more than the card.
std::vector<std::string> CdiNames(const PreparedClaim& claim, const ClaimDevice& device);

// The claim's CDI spec, and the content of allocation.json. Pure.
std::string MakeClaimSpec(const PreparedClaim& claim, const std::string& run_dir);
std::string MakeAllocationFile(const PreparedClaim& claim);
// INVALID_ARGUMENT names the member that is missing or wrong.
absl::StatusOr<PreparedClaim> ParseAllocationFile(std::string_view text);

// Thread-safe: every call works on the file system alone.
class ClaimStore {
 public:
  ClaimStore(std::string alloc_dir, std::string cdi_dir, std::string label = ContainerLabel())
      : alloc_dir_(std::move(alloc_dir)), cdi_dir_(std::move(cdi_dir)), label_(std::move(label)) {}

  // Makes folder and spec. Overwrites those of an earlier attempt. Leaves nothing behind on failure.
  absl::Status Write(const PreparedClaim& claim) const;
  // Makes the spec again if it is missing or differs: the folder of specs is empty after a reboot. True: it was.
  absl::StatusOr<bool> RestoreSpec(const PreparedClaim& claim) const;
  // OK if there is nothing. allocation.json goes first: from then on the agent does not serve the folder.
  absl::Status Remove(std::string_view uid) const;

  struct Listed {
    std::vector<PreparedClaim> claims;
    std::vector<std::string> unreadable;  // uids of folders whose allocation.json is missing or damaged
  };
  absl::StatusOr<Listed> List() const;

  std::string RunDir(std::string_view uid) const;
  std::string SpecPath(std::string_view uid) const;

 private:
  std::string alloc_dir_, cdi_dir_, label_;
};

// Host paths of hook libraries, and names of cards' CDI devices, that prepared claims use. nullopt: the folder cannot
// be read, and nothing may be deleted.
struct ClaimHolds {
  std::set<std::string> libraries, cdi_names;
};
std::optional<ClaimHolds> ListClaimHolds(const std::string& alloc_dir);

// Units (percent, rounded up for each claim) of each card that prepared claims hold, by uuid. nullopt: the folder
// cannot be read. A claim whose file is damaged counts for nothing.
std::optional<std::map<std::string, int>> ClaimedUnits(const std::string& alloc_dir);

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_CLAIM_STORE_H_
