#include "agent/status_proto.h"

#include "sluice/version.h"

namespace sluice::agent {
namespace {

void Put(const sluice_gpu_counters& c, v1::Counters* to) {
  to->set_uuid(c.uuid);
#define SLUICE_COUNTER(name, ...) to->set_##name(static_cast<decltype(to->name())>(c.name));
#include "counters.def"
}

void Put(const ParkStatus& p, v1::ParkStatus* to) {
  to->set_state(p.state);
  to->set_reason(p.reason);
  to->set_since_ms(p.since_ms);
  to->set_resident_bytes(p.resident);
  to->set_unmanaged_bytes(p.unmanaged);
  to->set_context_bytes(p.contexts);
  to->set_parks(p.parks);
  to->set_wakes(p.wakes);
  to->set_woken_by(p.woken_by);
  to->set_waits(p.waits);
}

void Put(const AllocationStatus& a, v1::AllocationStatus* to) {
  to->set_id(a.id);
  to->set_pod(a.pod);
  to->set_namespace_(a.ns);
  to->set_container(a.container);
  to->set_claim(a.claim);
  to->set_hook_state(a.hook_state);
  to->set_hook_reason(a.hook_reason);
  to->set_held(a.held);
  Put(a.park, to->mutable_park());
  for (const auto& [key, value] : a.settings) (*to->mutable_settings())[key] = value;
  for (const ShareStatus& s : a.gpus) {
    v1::GpuShare* share = to->add_gpus();
    share->set_uuid(s.uuid);
    share->set_units(s.units);
    share->set_percent(s.percent);
    share->set_guaranteed_bytes(s.guaranteed);
    share->set_budget_bytes(s.budget);
    share->set_limit_bytes(s.limit);
    share->set_compute_request(s.compute_request / 1e6);
    share->set_compute_limit(s.compute_limit / 1e6);
    share->set_compute_used(s.compute_used);
    share->set_link_bytes_per_second(s.link);
    share->set_touched_peak_bytes(s.touched_peak);
    share->set_fraction_needed(s.right_size.needed);
    share->set_size_is_far_off(s.right_size.is_far_off);
    share->set_size_advice(s.right_size.text);
  }
  for (const ProcessStatus& p : a.processes) {
    v1::Process* process = to->add_processes();
    process->set_pid(p.pid);
    process->set_command(p.command);
    process->set_hook_version(p.version);
    process->set_proof(p.proof);
    process->set_reason(p.reason);
    for (const sluice_gpu_counters& c : p.gpus) Put(c, process->add_gpus());
  }
  for (const sluice_gpu_counters& c : a.ended) Put(c, to->add_ended());
}

}  // namespace

void ToProto(const NodeStatus& from, v1::Status* to) {
  to->Clear();
  to->set_agent_version(SLUICE_VERSION);
  to->set_unix_ms(from.unix_ms);
  to->set_config_error(from.config_error);
  to->set_offer_problem(from.offer_problem);
  to->set_host_bytes(from.host_bytes);
  to->set_host_limit_bytes(from.host_limit);
  for (const CardStatus& c : from.cards) {
    v1::Gpu* gpu = to->add_gpus();
    gpu->set_uuid(c.uuid);
    gpu->set_model(c.model);
    gpu->set_memory_bytes(c.memory);
    gpu->set_reserve_bytes(c.reserve);
    gpu->set_guaranteed_bytes(c.guaranteed);
    gpu->set_lent_bytes(c.lent);
    gpu->set_overdue_bytes(c.overdue);
    gpu->set_used_bytes(c.used);
    gpu->set_cgroup_bytes(c.cgroup_memory);
  }
  for (const AllocationStatus& a : from.allocations) Put(a, to->add_allocations());
  for (const ForeignProcess& f : from.foreign) {
    v1::ForeignProcess* process = to->add_foreign();
    process->set_pid(f.pid);
    process->set_gpu(f.gpu);
    process->set_allocation(f.allocation);
    process->set_namespace_(f.ns);
    process->set_pod(f.pod);
  }
}

void ToProto(const Event& from, v1::Event* to) {
  to->set_number(from.number);
  to->set_unix_ms(from.unix_ms);
  to->set_allocation(from.allocation);
  to->set_kind(from.kind);
  to->set_text(from.text);
}

}  // namespace sluice::agent
