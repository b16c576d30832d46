#include "hooklib/policy/plan.h"

namespace sluice::policy {

void PlanStep::Clear() {
  drop.clear();
  unmap.clear();
  duplicate.clear();
  evict.clear();
  fetch.clear();
  pieces.clear();
  out_after = out_op = in_op = 0;
}

void Plan::Clear() {
  now.Clear();
  ahead.Clear();
  for (std::vector<Extent>* runs : {&evict_after, &discard, &stream_discard, &populate_now, &populate_on_host,
                                    &map_remote, &unmap_remote, &repopulate})
    runs->clear();
  probe = {};
  graph_probe = {};
  repopulate_after = wait_in = evict_after_op = 0;
}

}  // namespace sluice::policy
