#include "hooklib/engine/execute/requests.h"

#include <cstring>

namespace sluice::requests {

namespace {

struct MigrateRequest {
  uint64_t base, length;
  unsigned char to[16];
  uint32_t flags;
  uint64_t semaphore;
  uint32_t payload;
  int32_t node;
  uint64_t user_start, user_length;
  uint32_t status;
};
static_assert(sizeof(MigrateRequest) == 80);
constexpr unsigned long kMigrate = 51;
// The driver's name for the host.
constexpr unsigned char kHostUuid[16] = {0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2,
                                         0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73};

struct DiscardRequest {
  uint64_t base, length, flags;
  uint32_t status;
};
static_assert(sizeof(DiscardRequest) == 32);
constexpr unsigned long kDiscard = 80;
constexpr uint64_t kUnmap = 1;

template <typename Request>
bool Make(const DriverPort& port, const client::Descriptor& space, unsigned long number, Request* request) {
  if (!space.IsOurs()) return false;  // the program has closed it, perhaps opened something else in its place
  request->status = ~0u;
  return port.control(space.fd(), number, request) == 0 && request->status == 0;
}

}  // namespace

bool Evict(const DriverPort& port, const client::Descriptor& space, memory::Extent range) {
  MigrateRequest request{};
  request.base = range.base;
  request.length = range.bytes;
  std::memcpy(request.to, kHostUuid, sizeof kHostUuid);
  request.node = -1;
  return Make(port, space, kMigrate, &request);
}

bool Discard(const DriverPort& port, const client::Descriptor& space, memory::Extent range) {
  DiscardRequest request{};
  request.base = range.base;
  request.length = range.bytes;
  request.flags = kUnmap;
  return Make(port, space, kDiscard, &request);
}

}  // namespace sluice::requests
