// The plugin's interface to NVML, in few coarse calls. Implemented by the driver's library (driver_nvml_unsafe.cc), by
// a decorator that bounds each call in time (bounded_nvml.h) and by a fake in the tests. Thread-safe.
#ifndef SLUICE_DEVICEPLUGIN_NVML_NVML_API_H_
#define SLUICE_DEVICEPLUGIN_NVML_NVML_API_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

struct CardReading {
  std::string uuid;
  std::string model;
  uint64_t memory_bytes = 0;  // 0: the driver knows no size
  int minor = -1;
  int numa = -1;
  bool ecc = false;
  bool exclusive = false;    // compute mode is not DEFAULT
  std::string compute_mode;  // for messages
  bool mig = false;
  bool vgpu = false;
  bool recovery_needed = false;  // the driver asks for a reset or reboot
  uint64_t reserved_bytes = 0;   // kept by the driver; no program can allocate it
  std::string architecture;      // "Hopper"; empty: not known
  std::string pcie_root;         // "pci0000:00"; empty: not known
  std::string nvlink_clique;  // "<cluster uuid>.<clique>": GPUs of one clique reach each other by NVLink; empty: none
  std::set<std::string> nvlink_peers;  // uuids of the node's other GPUs that it reaches by NVLink
};

struct NvmlEvent {
  enum class Type { kXid, kDoubleBitEcc };
  Type type = Type::kXid;
  std::string uuid;  // empty: the event names no card
  uint64_t xid = 0;
};

class NvmlApi {
 public:
  virtual ~NvmlApi() = default;

  // Loads library and driver; a second call does both again. NOT_FOUND: no driver on this machine.
  virtual absl::Status Open() = 0;
  virtual absl::StatusOr<std::string> DriverVersion() = 0;
  virtual absl::StatusOr<int> Count() = 0;
  // NOT_FOUND: the card has fallen off the bus.
  virtual absl::StatusOr<CardReading> Read(int index) = 0;
  // Waits up to `timeout`; nullopt: no event. UNIMPLEMENTED: this driver sends none.
  virtual absl::StatusOr<std::optional<NvmlEvent>> WaitEvent(std::chrono::milliseconds timeout) = 0;
};

// The driver's own library. `library` is passed to dlopen (default: libnvidia-ml.so.1); `sys_root` is /sys.
std::shared_ptr<NvmlApi> MakeDriverNvml(std::string library, std::string sys_root);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NVML_NVML_API_H_
