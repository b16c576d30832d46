#include "agent/service.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "agent.grpc.pb.h"
#include "agent/neighbours.h"
#include "agent/status_proto.h"
#include "common/log/grpc_log.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using grpc::ServerWriteReactor;
using grpc::StatusCode;

std::string NewId(const std::string& name) {
  std::random_device random;
  char tail[16];
  std::snprintf(tail, sizeof(tail), "%08x", static_cast<unsigned>(random()));
  std::string id;
  for (const char c : name.substr(0, 40)) id += IsAllocationId(std::string("a") + c) ? c : '-';
  while (!id.empty() && id[0] == '.') id.erase(0, 1);
  return (id.empty() ? "run" : id) + "-" + tail;
}

}  // namespace

class Service::Impl final : public v1::Agent::CallbackService {
 public:
  Impl(EventLoop* loop, Node* node, Server* server) : loop_(loop), node_(node), folders_(server) {}

  ServerUnaryReactor* GetStatus(CallbackServerContext* context, const v1::GetStatusRequest*, v1::Status* out) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_->Post([this, reactor, out] {
      ToProto(Now(), out);
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  ServerUnaryReactor* ListEvents(CallbackServerContext* context, const v1::ListEventsRequest* request,
                                 v1::ListEventsResponse* out) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_->Post([this, reactor, request, out] {
      for (const Event& e : node_->EventsAfter(request->after())) ToProto(e, out->add_events());
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  ServerUnaryReactor* Set(CallbackServerContext* context, const v1::SetRequest* request,
                          v1::SetResponse* out) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_->Post([this, reactor, request, out] { reactor->Finish(DoSet(*request, out)); });
    return reactor;
  }

  ServerUnaryReactor* Park(CallbackServerContext* context, const v1::ParkRequest* request,
                           v1::ParkResponse* out) override {
    return Change(context, request->id(), out, [this](const std::string& id, std::string* error) {
      return node_->ParkNow(id, "sluice park", MonotonicNs(), error);
    });
  }

  ServerUnaryReactor* Wake(CallbackServerContext* context, const v1::WakeRequest* request,
                           v1::WakeResponse* out) override {
    return Change(context, request->id(), out,
                  [this](const std::string& id, std::string* error) { return node_->Wake(id, MonotonicNs(), error); });
  }

  // One status an interval until the caller ends the call.
  class Watcher final : public ServerWriteReactor<v1::Status> {
   public:
    Watcher(Impl* service, int interval_ms) : service_(service), interval_ms_(interval_ms) {
      service_->loop_->Post([this] { Next(); });
    }
    void OnWriteDone(bool ok) override {
      service_->loop_->Post([this, ok] {
        if (!ok) return End();
        writing_ = false;
        service_->loop_->After(interval_ms_, [this] { waiting_ = false, Next(); });
        waiting_ = true;
      });
    }
    void OnCancel() override {
      service_->loop_->Post([this] {
        cancelled_ = true;
        if (!writing_) End();
      });
    }
    void OnDone() override {
      service_->loop_->Post([this] {
        done_ = true;
        if (!waiting_) delete this;
      });
    }

   private:
    void Next() {
      if (done_) {
        delete this;
        return;
      }
      if (cancelled_) return End();
      ToProto(service_->Now(), &status_);
      writing_ = true;
      StartWrite(&status_);
    }
    void End() {
      if (!ended_) Finish(grpc::Status::CANCELLED);
      ended_ = true;
    }
    Impl* const service_;
    const int interval_ms_;
    v1::Status status_;
    // Of the loop's thread: Finish is called once, and this is not deleted while a timer refers to it.
    bool writing_ = false, waiting_ = false, cancelled_ = false, ended_ = false, done_ = false;
  };

  ServerWriteReactor<v1::Status>* WatchStatus(CallbackServerContext*, const v1::WatchStatusRequest* request) override {
    return new Watcher(this, static_cast<int>(std::clamp(request->interval_ms(), 50u, 60000u)));
  }

  // Holds an allocation as long as the call lasts.
  class Holder final : public ServerWriteReactor<v1::Allocation> {
   public:
    Holder(Impl* service, const v1::CreateAllocationRequest& request) : service_(service), request_(request) {
      service_->loop_->Post([this] {
        const grpc::Status status = service_->DoCreate(request_, &allocation_);
        if (cancelled_ || !status.ok()) return End(status);
        StartWrite(&allocation_);
      });
    }
    void OnWriteDone(bool ok) override {
      if (!ok) service_->loop_->Post([this] { End(grpc::Status::CANCELLED); });
    }
    void OnCancel() override {
      service_->loop_->Post([this] {
        cancelled_ = true;
        End(grpc::Status::CANCELLED);
      });
    }
    void OnDone() override {
      service_->loop_->Post([this] { delete this; });
    }

   private:
    void End(const grpc::Status& status) {
      if (ended_) return;
      ended_ = true;
      if (!allocation_.id().empty()) service_->folders_->Release(allocation_.id());
      Finish(status);
    }
    Impl* const service_;
    const v1::CreateAllocationRequest request_;
    v1::Allocation allocation_;
    bool cancelled_ = false, ended_ = false;
  };

  ServerWriteReactor<v1::Allocation>* CreateAllocation(CallbackServerContext*,
                                                       const v1::CreateAllocationRequest* request) override {
    return new Holder(this, *request);
  }

  bool Start(const std::string& path, std::string* error) {
    grpc_.reset();  // removes its socket
    std::error_code ec;
    std::filesystem::remove(path,
                            ec);  // a socket of an agent that was killed, or another file; not a folder with files
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.SetResourceQuota(grpc::ResourceQuota("agent").SetMaxThreads(8));
    const mode_t before = umask(0117);  // the socket: owner and group
    grpc_ = builder.BuildAndStart();
    umask(before);
    if (grpc_ != nullptr && lstat(path.c_str(), &socket_) == 0) return true;
    *error = path + ": the socket cannot be made";
    return false;
  }
  void Shutdown() {
    if (grpc_) grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  }
  bool HasSocket(const std::string& path) const {
    struct stat now{};
    return lstat(path.c_str(), &now) == 0 && now.st_ino == socket_.st_ino && S_ISSOCK(now.st_mode);
  }
  std::string card_error;

 private:
  NodeStatus Now() const {
    NodeStatus s = node_->Status();
    s.unix_ms = UnixMs();
    return s;
  }

  // change(id, &error) of the allocation that `name` names; false: a sentence.
  template <typename Response, typename F>
  ServerUnaryReactor* Change(CallbackServerContext* context, const std::string& name, Response* out, F change) {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_->Post([this, reactor, name, out, change] {
      std::string id, error;
      if (!node_->ResolveId(name, &id, &error)) return reactor->Finish({StatusCode::NOT_FOUND, error});
      if (!change(id, &error)) return reactor->Finish({StatusCode::FAILED_PRECONDITION, error});
      node_->Settle();
      loop_->TickSoon();
      out->set_id(id);
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  grpc::Status DoSet(const v1::SetRequest& request, v1::SetResponse* out) {
    std::string id, error;
    if (!node_->ResolveId(request.id(), &id, &error)) return {StatusCode::NOT_FOUND, error};
    const std::map<std::string, std::string> change(request.settings().begin(), request.settings().end());
    std::map<std::string, std::string> live;
    if (!node_->CheckSet(id, change, &live, &error)) return {StatusCode::INVALID_ARGUMENT, error};
    if (!folders_->SaveLive(id, live, &error)) return {StatusCode::INTERNAL, error};
    node_->ApplyLive(id, live);
    node_->Settle();
    std::string text;
    for (const auto& [key, value] : change) text += (text.empty() ? "" : ", ") + key + "=" + value;
    node_->AddEvent(id, "set", text);
    if (change.contains(SLUICE_KEY_GPU_FRACTION) || change.contains(SLUICE_KEY_GPU_MEMORY))
      out->set_note(node_->ExcessNote(id));
    for (const AllocationStatus& a : node_->Status().allocations) {
      if (a.id == id) *out->mutable_settings() = {a.settings.begin(), a.settings.end()};
    }
    return grpc::Status::OK;
  }

  grpc::Status DoCreate(const v1::CreateAllocationRequest& request, v1::Allocation* out) {
    AllocationSpec spec;
    spec.id = NewId(request.name());
    spec.container = request.name();
    spec.tied = true;
    spec.owner = request.owner();
    const auto parsed = settings::ParseAll({request.settings().begin(), request.settings().end()}, "");
    if (!parsed.ok()) return {StatusCode::INVALID_ARGUMENT, parsed.errors.front()};
    spec.settings = parsed.settings;
    if (request.gpus().empty()) return {StatusCode::INVALID_ARGUMENT, "gpus: at least one is needed"};
    std::vector<std::string> taken, neighbours = Neighbours(request);
    const bool opportunistic = spec.settings.priority == settings::Priority::kOpportunistic;
    for (const v1::GpuShare& g : request.gpus()) {
      uint32_t units = g.units();
      std::string uuid = g.uuid();
      if (!neighbours.empty()) uuid = neighbours[taken.size()];
      if (units == 0 && spec.settings.gpu_memory) {  // of the GPU with the most free units
        const std::string card = uuid.empty() ? node_->ChooseCard(0, taken) : uuid;
        const Ledger* ledger = node_->LedgerOf(card);
        const Bytes capacity = ledger == nullptr ? 0 : ledger->capacity();
        if (capacity > 0 && *spec.settings.gpu_memory > capacity) {
          return {StatusCode::INVALID_ARGUMENT, "gpu-memory: '" + settings::FormatQuantity(*spec.settings.gpu_memory) +
                                                    "' is not accepted; accepted: at most " +
                                                    settings::FormatQuantity(capacity >> 20 << 20) +
                                                    ", the GPU less its reserve"};
        }
        if (capacity > 0)
          units = static_cast<uint32_t>((*spec.settings.gpu_memory + capacity / 100 - 1) / (capacity / 100));
        units = std::clamp<uint32_t>(units, 1, SLUICE_UNITS_PER_GPU);
      }
      const uint32_t needed = opportunistic ? 0 : units;  // of the units that no other allocation has
      if (uuid.empty()) uuid = node_->ChooseCard(needed, taken);
      if (uuid.empty() || node_->LedgerOf(uuid) == nullptr) return NoCard(request, g.uuid(), units);
      if (node_->FreeUnits(uuid) < needed) {
        return {StatusCode::RESOURCE_EXHAUSTED, "GPU " + uuid + " has " + std::to_string(node_->FreeUnits(uuid)) +
                                                    " of 100 units left, " + std::to_string(units) + " are requested"};
      }
      taken.push_back(uuid);
      spec.gpus.push_back({uuid, units});
    }
    std::string directory, error;
    if (!folders_->Create(spec, &directory, &error)) return {StatusCode::INTERNAL, error};
    node_->Settle();
    out->set_id(spec.id);
    out->set_directory(directory);
    for (const GpuUnits& g : spec.gpus) {
      v1::GpuShare* share = out->add_gpus();
      share->set_uuid(g.uuid);
      share->set_units(g.units);
    }
    return grpc::Status::OK;
  }

  // For equal shares of several GPUs that the agent chooses; empty for other requests.
  std::vector<std::string> Neighbours(const v1::CreateAllocationRequest& request) const {
    const uint32_t units = request.gpus(0).units();
    const bool equal = std::all_of(request.gpus().begin(), request.gpus().end(),
                                   [units](const v1::GpuShare& g) { return g.uuid().empty() && g.units() == units; });
    const auto count = static_cast<size_t>(request.gpus_size());
    if (count < 2 || !equal) return {};
    return ChooseNeighbours(node_->Cards(), count, std::max(units, 1u));
  }

  // FAILED_PRECONDITION: there is no GPU at all.
  grpc::Status NoCard(const v1::CreateAllocationRequest& request, const std::string& uuid, uint32_t units) const {
    std::string known;
    const auto cards = node_->Cards();
    for (const CardStatus& c : cards) {
      known += (known.empty() ? "" : ", ") + c.uuid + " with " + std::to_string(c.free_units) + " of 100 units free";
    }
    if (known.empty())
      return {StatusCode::FAILED_PRECONDITION,
              "no usable GPU: " + (card_error.empty() ? "NVML lists none" : card_error)};
    if (!uuid.empty())
      return {StatusCode::RESOURCE_EXHAUSTED, "GPU '" + uuid + "' is not on this node; accepted: " + known};
    if (static_cast<size_t>(request.gpus_size()) > cards.size()) {
      return {StatusCode::RESOURCE_EXHAUSTED, std::to_string(request.gpus_size()) +
                                                  " GPUs are requested, this node has " + std::to_string(cards.size())};
    }
    const std::string count = std::to_string(request.gpus_size());
    return {StatusCode::RESOURCE_EXHAUSTED,
            (request.gpus_size() == 1 ? "no GPU has " : "fewer than " + count + " GPUs have ") + std::to_string(units) +
                " of 100 units left: " + known};
  }

  EventLoop* const loop_;
  Node* const node_;
  Server* const folders_;
  std::unique_ptr<grpc::Server> grpc_;
  struct stat socket_{};
};

Service::Service(EventLoop* loop, Node* node, Server* server) : impl_(std::make_unique<Impl>(loop, node, server)) {
  LogGrpcMessages();
}
Service::~Service() = default;
bool Service::Start(const std::string& socket_path, std::string* error) { return impl_->Start(socket_path, error); }
void Service::Shutdown() { impl_->Shutdown(); }
bool Service::HasSocket(const std::string& path) const { return impl_->HasSocket(path); }
void Service::SetCardError(const std::string& error) { impl_->card_error = error; }

}  // namespace sluice::agent
