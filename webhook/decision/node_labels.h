// A node's labels, small: nodes of a cluster have most labels in common, and equal ones are kept once. Copies share one
// list until one of them is changed.
#ifndef SLUICE_WEBHOOK_DECISION_NODE_LABELS_H_
#define SLUICE_WEBHOOK_DECISION_NODE_LABELS_H_

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::webhook {

// A value type. Different objects may be used by different threads, copies included.
class NodeLabels {
 public:
  // Shared by all nodes that carry it; equal labels are one object.
  struct Label {
    std::string key, value;
  };

  NodeLabels() = default;
  NodeLabels(std::initializer_list<std::pair<std::string_view, std::string_view>> labels);

  // Adds a label, or replaces its value.
  void Set(std::string_view key, std::string_view value);
  void ShrinkToFit();
  // The label's value, valid as long as this object is unchanged; nullopt: there is no such label.
  std::optional<std::string_view> Find(std::string_view key) const;

  // Ordered by key.
  using List = std::vector<std::shared_ptr<const Label>>;
  const List& all() const;
  bool operator==(const NodeLabels& other) const { return all() == other.all(); }

 private:
  // For a change: this object's own list.
  List& Own();

  std::shared_ptr<List> labels_;  // null: empty
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_NODE_LABELS_H_
