#include "webhook/decision/node_labels.h"

#include <algorithm>
#include <unordered_map>

#include "common/mutex.h"

namespace sluice::webhook {
namespace {

using Label = NodeLabels::Label;

// All labels in use. The last holder of a label removes it, on its own thread.
class Pool {
 public:
  std::shared_ptr<const Label> Get(std::string_view key, std::string_view value) {
    const MutexLock lock(mutex_);
    const auto found = labels_.find(Pair{key, value});
    if (found != labels_.end()) {
      // Expired: its last holder waits for the lock, to remove an entry that is another's by then.
      if (auto label = found->second.lock()) return label;
      labels_.erase(found);
    }
    std::shared_ptr<const Label> label(new Label{std::string(key), std::string(value)},
                                       [this](const Label* gone) { Remove(gone); });
    labels_.emplace(Pair{label->key, label->value}, label);
    return label;
  }

 private:
  using Pair = std::pair<std::string_view, std::string_view>;  // into the label itself
  struct Hash {
    size_t operator()(const Pair& pair) const {
      const std::hash<std::string_view> hash;
      return hash(pair.first) * 31 + hash(pair.second);
    }
  };

  void Remove(const Label* gone) {
    {
      const MutexLock lock(mutex_);
      const auto found = labels_.find(Pair{gone->key, gone->value});
      if (found != labels_.end() && found->first.first.data() == gone->key.data()) labels_.erase(found);
    }
    delete gone;
  }

  Mutex mutex_;
  std::unordered_map<Pair, std::weak_ptr<const Label>, Hash> labels_ SLUICE_GUARDED_BY(mutex_);
};

// Never destroyed: labels of static nodes may end after it.
Pool& LabelPool() {
  static auto* const pool = new Pool;
  return *pool;
}

bool IsBefore(const std::shared_ptr<const Label>& label, std::string_view key) { return label->key < key; }

}  // namespace

NodeLabels::NodeLabels(std::initializer_list<std::pair<std::string_view, std::string_view>> labels) {
  for (const auto& [key, value] : labels) Set(key, value);
}

const NodeLabels::List& NodeLabels::all() const {
  static const List kNone;
  return labels_ == nullptr ? kNone : *labels_;
}

NodeLabels::List& NodeLabels::Own() {
  if (labels_ == nullptr) {
    labels_ = std::make_shared<List>();
  } else if (labels_.use_count() > 1) {
    labels_ = std::make_shared<List>(*labels_);
  }
  return *labels_;
}

void NodeLabels::Set(std::string_view key, std::string_view value) {
  List& labels = Own();
  const auto at = std::lower_bound(labels.begin(), labels.end(), key, IsBefore);
  auto label = LabelPool().Get(key, value);
  if (at != labels.end() && (*at)->key == key) {
    *at = std::move(label);
  } else {
    labels.insert(at, std::move(label));
  }
}

void NodeLabels::ShrinkToFit() { Own().shrink_to_fit(); }

std::optional<std::string_view> NodeLabels::Find(std::string_view key) const {
  const List& labels = all();
  const auto at = std::lower_bound(labels.begin(), labels.end(), key, IsBefore);
  if (at == labels.end() || (*at)->key != key) return std::nullopt;
  return (*at)->value;
}

}  // namespace sluice::webhook
