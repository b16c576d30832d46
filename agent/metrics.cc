#include "agent/metrics.h"

#include <civetweb.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <vector>

#include "agent/status_json.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  void Gauge(const char* name, const char* help, const Labels& labels, double value) {
    ClientMetric m;
    m.label = labels;
    m.gauge.value = value;
    Family(name, help, MetricType::Gauge).metric.push_back(std::move(m));
  }
  void Counter(const char* name, const char* help, const Labels& labels, double value) {
    ClientMetric m;
    m.label = labels;
    m.counter.value = value;
    Family(name, help, MetricType::Counter).metric.push_back(std::move(m));
  }
  void Histogram(const char* name, const char* help, const AttachTimes& times) {
    ClientMetric m;
    uint64_t sum = 0;
    for (size_t i = 0; i < times.counts.size(); ++i) {
      sum += times.counts[i];
      m.histogram.bucket.push_back({sum, i < AttachTimes::kBoundsUs.size() ? AttachTimes::kBoundsUs[i] / 1e6
                                                                           : std::numeric_limits<double>::infinity()});
    }
    m.histogram.sample_count = sum;
    m.histogram.sample_sum = static_cast<double>(times.sum_ns) / 1e9;
    Family(name, help, MetricType::Histogram).metric.push_back(std::move(m));
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  MetricFamily& Family(const char* name, const char* help, MetricType type) {
    for (MetricFamily& f : families_) {
      if (f.name == name) return f;
    }
    MetricFamily f;
    f.name = name;
    f.help = help;
    f.type = type;
    families_.push_back(std::move(f));
    return families_.back();
  }
  std::vector<MetricFamily> families_;
};

double D(uint64_t v) { return static_cast<double>(v); }

// One GPU of one allocation: its living processes and those that ended, so that counters never fall.
void Share(const AllocationStatus& a, size_t gpu, const Labels& labels, Families& out) {
  const ShareStatus& s = a.gpus[gpu];
  sluice_gpu_counters sum = gpu < a.ended.size() ? a.ended[gpu] : sluice_gpu_counters{};
  uint64_t resident = 0, plain = 0, live = 0, host = 0, working = 0;
  for (const ProcessStatus& p : a.processes) {
    if (gpu >= p.gpus.size()) continue;
    const sluice_gpu_counters& c = p.gpus[gpu];
    resident += c.resident_bytes;
    plain += c.plain_bytes;
    live += c.live_bytes;
    host += c.host_bytes;
    working += c.working_set_bytes;
    sum.bytes_in += c.bytes_in;
    sum.bytes_out += c.bytes_out;
    sum.bytes_saved += c.bytes_saved;
    sum.fault_bytes += c.fault_bytes;
    sum.launches += c.launches;
    sum.launches_known += c.launches_known;
    sum.hits += c.hits;
    sum.misses += c.misses;
    sum.stall_ns += c.stall_ns;
    sum.over_budget_launches += c.over_budget_launches;
    sum.kernel_ns += c.kernel_ns;
    sum.kernel_estimated_ns += c.kernel_estimated_ns;
    sum.over_budget_max = std::max(sum.over_budget_max, c.over_budget_max);
  }
  out.Gauge("sluice_budget_bytes", "Resident bytes that the container may hold now.", labels, D(s.budget));
  out.Gauge("sluice_guaranteed_bytes", "Resident bytes that the container is guaranteed.", labels, D(s.guaranteed));
  out.Gauge("sluice_borrowed_bytes", "Budget above the guarantee.", labels,
            D(s.budget > s.guaranteed ? s.budget - s.guaranteed : 0));
  out.Gauge("sluice_lent_bytes",
            "Guarantee that is not in the container's budget now; before the first process all of it.", labels,
            D(s.guaranteed > s.budget ? s.guaranteed - s.budget : 0));
  out.Gauge("sluice_debt_bytes", "Called back and not yet given back.", labels, D(s.debt));
  out.Gauge("sluice_limit_bytes", "Bytes that may be live, resident or not.", labels, D(s.limit));
  out.Gauge("sluice_resident_bytes", "Tracked bytes that are resident on the GPU.", labels, D(resident));
  out.Gauge("sluice_plain_bytes", "Application memory that is not managed by sluice.", labels, D(plain));
  out.Gauge("sluice_live_bytes", "Tracked bytes that are allocated and not freed.", labels, D(live));
  out.Gauge("sluice_host_bytes", "Evicted bytes charged to host memory, high-water mark.", labels, D(host));
  out.Gauge("sluice_working_set_bytes", "Bytes that the last 10 seconds touched.", labels, D(working));
  out.Gauge("sluice_over_budget_max_bytes", "Largest excess over the budget ever seen.", labels,
            D(sum.over_budget_max));
  out.Counter("sluice_fetched_bytes_total", "Bytes moved to the GPU.", labels, D(sum.bytes_in));
  out.Counter("sluice_evicted_bytes_total", "Bytes moved to host memory.", labels, D(sum.bytes_out));
  out.Counter("sluice_saved_bytes_total", "Bytes of fetches and evictions that needed no copy.", labels,
              D(sum.bytes_saved));
  out.Counter("sluice_fault_bytes_total",
              "Bytes moved by demand faults; estimated where the driver does not count them.", labels,
              D(sum.fault_bytes));
  out.Counter("sluice_stall_seconds_total", "Time that streams waited for transfers.", labels, D(sum.stall_ns) / 1e9);
  out.Counter("sluice_launches_total", "Kernel and graph launches.", labels, D(sum.launches));
  out.Counter("sluice_launches_known_total", "Launches with a complete access set.", labels, D(sum.launches_known));
  out.Counter("sluice_launches_over_budget_total", "Launches that ran above the budget.", labels,
              D(sum.over_budget_launches));
  out.Counter("sluice_block_hits_total", "Blocks that a launch needed and found resident.", labels, D(sum.hits));
  out.Counter("sluice_block_misses_total", "Blocks that a launch needed and had to be fetched.", labels, D(sum.misses));
  out.Counter("sluice_gpu_seconds_total", "GPU time used, by kernel events.", labels, D(sum.kernel_ns) / 1e9);
  out.Counter("sluice_gpu_seconds_estimated_total", "Of it, time that no token covered: from samples.", labels,
              D(sum.kernel_estimated_ns) / 1e9);
  out.Gauge("sluice_compute_used_ratio", "Share of the window's GPU time that was used.", labels, s.compute_used);
  out.Gauge("sluice_compute_request_ratio", "Guaranteed share of GPU time.", labels, s.compute_request / 1e6);
  out.Gauge("sluice_compute_limit_ratio", "Largest share of GPU time.", labels, s.compute_limit / 1e6);
  out.Gauge("sluice_processes", "Attached processes.", labels, D(a.processes.size()));
  for (const char* state : {"expected", "attached", "not hooked", "refused"}) {
    Labels with = labels;
    with.push_back({"state", state});
    out.Gauge("sluice_hook_state", "1 for the state that holds: expected, attached, not hooked, refused.", with,
              a.hook_state == state);
  }
}

std::vector<MetricFamily> Collect(const NodeStatus& status, const std::string& node) {
  Families out;
  out.Gauge("sluice_agent_info", "1, with the agent's version.", {{"version", SLUICE_VERSION}, {"node", node}}, 1);
  out.Gauge("sluice_config_refused", "1 while the last configuration was refused and the one before holds.", {},
            status.config_error.empty() ? 0 : 1);
  out.Gauge("sluice_node_host_bytes", "Evicted bytes of all containers in host memory.", {}, D(status.host_bytes));
  out.Gauge("sluice_node_host_limit_bytes", "Cap of evicted bytes in host memory.", {}, D(status.host_limit));
  out.Counter("sluice_malformed_frames_total", "Frames that were refused.", {}, D(status.malformed_frames));
  out.Counter("sluice_callbacks_late_total", "Callbacks that a container did not answer in time.", {},
              D(status.late_callbacks));
  out.Histogram("sluice_agent_attach_seconds", "The agent's processor time for one process that attaches.",
                status.attach);
  for (const CardStatus& c : status.cards) {
    const Labels labels = {{"gpu", c.uuid}};
    out.Gauge("sluice_gpu_memory_bytes", "Memory of the card.", labels, D(c.memory));
    out.Gauge("sluice_gpu_reserve_bytes", "Memory that no container is given.", labels, D(c.reserve));
    out.Gauge("sluice_gpu_guaranteed_bytes", "Sum of guarantees.", labels, D(c.guaranteed));
    out.Gauge("sluice_gpu_lent_bytes", "Sum of what containers have above their guarantee.", labels, D(c.lent));
    out.Gauge("sluice_gpu_debt_bytes", "Sum of what was called back and is not yet given back.", labels, D(c.debt));
    out.Gauge("sluice_gpu_used_bytes", "Used memory by NVML.", labels, D(c.used));
    out.Gauge("sluice_gpu_tokens_demanded", "1 while launches need a compute token.", labels, c.tokens ? 1 : 0);
  }
  for (const AllocationStatus& a : status.allocations) {
    for (size_t i = 0; i < a.gpus.size(); ++i) {
      Share(a, i,
            {{"allocation", a.id},
             {"pod", a.pod},
             {"namespace", a.ns},
             {"container", a.container},
             {"gpu", a.gpus[i].uuid}},
            out);
    }
  }
  return out.Take();
}

}  // namespace

std::string MetricsText(const NodeStatus& status, const std::string& node) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, Collect(status, node));
  return out.str();
}

class MetricsServer::Impl {
 public:
  Impl(std::string listen, std::string node, std::function<NodeStatus()> now)
      : listen_(std::move(listen)), node_(std::move(node)), now_(std::move(now)) {}
  ~Impl() {
    if (context_ != nullptr) mg_stop(context_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool Start() {
    // Two threads: a scraper that is slow must not fail kubelet's probe.
    const char* options[] = {"listening_ports",
                             listen_.c_str(),
                             "num_threads",
                             "2",
                             "request_timeout_ms",
                             "5000",
                             "enable_keep_alive",
                             "no",
                             nullptr};
    const mg_callbacks callbacks = {};
    context_ = mg_start(&callbacks, this, options);
    if (context_ == nullptr) return false;
    mg_set_request_handler(context_, "/metrics", &OnMetrics, this);
    mg_set_request_handler(context_, "/status.json", &OnStatus, this);
    return true;
  }
  const std::string& listen() const { return listen_; }
  int port() const {
    mg_server_port ports[4];
    return context_ != nullptr && mg_get_server_ports(context_, 4, ports) > 0 ? ports[0].port : 0;
  }

 private:
  static int Answer(mg_connection* connection, const char* type, const std::string& body) {
    const std::string head = std::string("HTTP/1.1 200 OK\r\nContent-Type: ") + type +
                             "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
    return 200;
  }
  static int OnMetrics(mg_connection* c, void* self) {
    const auto* impl = static_cast<const Impl*>(self);
    return Answer(c, "text/plain; version=0.0.4; charset=utf-8", MetricsText(impl->now_(), impl->node_));
  }
  static int OnStatus(mg_connection* c, void* self) {
    return Answer(c, "application/json", StatusJson(static_cast<const Impl*>(self)->now_()));
  }

  const std::string listen_, node_;
  const std::function<NodeStatus()> now_;
  mg_context* context_ = nullptr;
};

MetricsServer::MetricsServer(const std::string& listen, const std::string& node, std::function<NodeStatus()> now)
    : impl_(std::make_unique<Impl>(listen, node, std::move(now))) {}
MetricsServer::~MetricsServer() = default;

bool MetricsServer::Start(std::string* error) {
  if (impl_->Start()) return true;
  *error = "metrics.listen: '" + impl_->listen() + "' cannot be listened at";
  return false;
}

int MetricsServer::port() const { return impl_->port(); }

}  // namespace sluice::agent
