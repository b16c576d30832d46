#include "deviceplugin/dra/health_service.h"

#include <atomic>
#include <chrono>
#include <type_traits>
#include <vector>

#include "deviceplugin/dra/health.h"
#include "dra_health_v1.grpc.pb.h"
#include "dra_health_v1alpha1.grpc.pb.h"

namespace sluice::deviceplugin::dra {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStep{500};
// Kubelet takes a device for unknown that it hears nothing of for the timeout.
constexpr std::chrono::seconds kRepeat{10};
constexpr int64_t kTimeoutSeconds = 30;

struct Watch {
  const std::shared_ptr<SnapshotPublisher> snapshots;
  const std::string pool;
  std::atomic<bool> stopping = false;
};

template <class Base, class Request, class Response>
class Version final : public Base {
 public:
  explicit Version(const Watch* watch) : watch_(watch) {}

  grpc::Status NodeWatchResources(grpc::ServerContext* context, const Request*,
                                  grpc::ServerWriter<Response>* writer) override {
    uint64_t generation = 0;
    std::vector<DeviceHealth> last;
    Clock::time_point sent{};
    while (!watch_->stopping && !context->IsCancelled()) {
      watch_->snapshots->WaitForNewer(&generation, kStep, watch_->stopping);
      const auto snapshot = watch_->snapshots->Latest();
      if (!snapshot) continue;
      std::vector<DeviceHealth> now = HealthOf(snapshot->inventory);
      if (now == last && Clock::now() < sent + kRepeat) continue;
      if (!writer->Write(Message(now, snapshot->read_at))) break;
      sent = Clock::now();
      last = std::move(now);
    }
    return grpc::Status::OK;
  }

 private:
  Response Message(const std::vector<DeviceHealth>& cards, std::chrono::system_clock::time_point read_at) const {
    Response out;
    for (const DeviceHealth& card : cards) {
      auto* entry = out.add_devices();
      entry->mutable_device()->set_pool_name(watch_->pool);
      entry->mutable_device()->set_device_name(card.device);
      using Health = std::remove_cvref_t<decltype(entry->health())>;
      entry->set_health(static_cast<Health>(static_cast<int>(card.state)));
      entry->set_last_updated_time(std::chrono::system_clock::to_time_t(read_at));
      entry->set_health_check_timeout_seconds(watch_->snapshots->Latest()->config.poll / std::chrono::seconds(1) * 2 +
                                              kTimeoutSeconds);
      entry->set_message(card.message);
    }
    return out;
  }

  const Watch* const watch_;
};

class Services final : public HealthService {
 public:
  Services(std::shared_ptr<SnapshotPublisher> snapshots, std::string pool)
      : watch_{std::move(snapshots), std::move(pool)} {}

  grpc::Service* v1() override { return &v1_; }
  grpc::Service* v1alpha1() override { return &v1alpha1_; }
  void Stop() override {
    watch_.stopping = true;
    watch_.snapshots->Wake();
  }

 private:
  Watch watch_;
  Version<::v1::DRAResourceHealth::Service, ::v1::NodeWatchResourcesRequest, ::v1::NodeWatchResourcesResponse> v1_{
      &watch_};
  Version<::v1alpha1::DRAResourceHealth::Service, ::v1alpha1::NodeWatchResourcesRequest,
          ::v1alpha1::NodeWatchResourcesResponse>
      v1alpha1_{&watch_};
};

}  // namespace

std::unique_ptr<HealthService> HealthService::Make(std::shared_ptr<SnapshotPublisher> snapshots, std::string pool) {
  return std::make_unique<Services>(std::move(snapshots), std::move(pool));
}

}  // namespace sluice::deviceplugin::dra
