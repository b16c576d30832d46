#include "webhook/decision/node_labels.h"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <thread>
#include <vector>

namespace sluice::webhook {

TEST_CASE("labels are found by key, and equal ones of different nodes are one object") {
  NodeLabels a = {{"zone", "z1"}, {"kubernetes.io/hostname", "a"}, {"empty", ""}};
  const NodeLabels b = {{"kubernetes.io/hostname", "b"}, {"zone", "z1"}};
  CHECK(a.Find("zone") == "z1");
  CHECK(a.Find("empty") == "");
  CHECK(!b.Find("empty"));
  CHECK(!a.Find("zon"));
  CHECK(!NodeLabels().Find("zone"));
  CHECK(a.all().back() == b.all().back());
  CHECK(a != b);
  a.Set("zone", "z2");
  CHECK(a.all().size() == 3);
  CHECK(a.Find("zone") == "z2");
  CHECK(b.Find("zone") == "z1");
}

TEST_CASE("a changed copy leaves the original as it is") {
  const NodeLabels original = {{"pool", "x"}};
  NodeLabels copy = original;
  CHECK(copy == original);
  copy.Set("pool", "y");
  copy.Set("more", "1");
  CHECK(original.Find("pool") == "x");
  CHECK(!original.Find("more"));
  CHECK(copy.Find("pool") == "y");
  copy.Set("pool", "x");
  CHECK(copy != original);
  CHECK(NodeLabels({{"more", "1"}, {"pool", "x"}}) == copy);
}

TEST_CASE("threads that make and drop the same labels always see their own values") {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&wrong, t] {
      for (int i = 0; i < 20000; ++i) {
        const std::string value = "value-of-some-length-" + std::to_string(i % 3);
        const NodeLabels labels = {{"kubernetes.io/some-long-key", value}, {"short", value}};
        wrong[t] += labels.Find("kubernetes.io/some-long-key") != value || labels.Find("short") != value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

}  // namespace sluice::webhook
