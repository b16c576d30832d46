// The rotation of self-made certificates, over ten years with one call a day.
#include "common/tls/rotation.h"

#include <openssl/pem.h>
#include <openssl/x509_vfy.h>

#include <catch2/catch_test_macros.hpp>
#include <deque>

#include "common/tls/key_pair.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): the library under test
using std::chrono::hours;
using std::chrono::system_clock;

// Whether a client that trusts `bundle` accepts `leaf` at `now`.
bool Accepts(const std::string& bundle, const std::string& leaf, system_clock::time_point now) {
  X509_STORE* store = X509_STORE_new();
  BIO* bio = BIO_new_mem_buf(bundle.data(), static_cast<int>(bundle.size()));
  while (X509* c = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr)) {
    X509_STORE_add_cert(store, c);
    X509_free(c);
  }
  BIO_free(bio);
  bio = BIO_new_mem_buf(leaf.data(), static_cast<int>(leaf.size()));
  X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  X509_STORE_CTX* context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, certificate, nullptr);
  X509_VERIFY_PARAM* parameters = X509_STORE_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_time(parameters, system_clock::to_time_t(now));
  X509_VERIFY_PARAM_set1_host(parameters, "webhook.ns.svc", 0);
  const bool good = X509_verify_cert(context) == 1;
  X509_STORE_CTX_free(context);
  X509_free(certificate);
  X509_STORE_free(store);
  return good;
}

RotationOptions Options() {
  RotationOptions o;
  o.names = {"webhook.ns.svc", "webhook.ns.svc.cluster.local"};
  return o;
}

// Longer than any settle time.
constexpr hours kLong{1000};

const system_clock::time_point kStart = system_clock::from_time_t(1767225600);  // 2026-01-01

}  // namespace

TEST_CASE("for ten years, every API server accepts every replica's certificate, with lag and clock skew") {
  SecretData secret;
  std::deque<std::string> leaves, bundles;  // of replicas and API servers that lag behind
  size_t steps = 0, ca_steps = 0;
  hours changed{0};
  for (hours at{0}; at < hours{24 * 3650}; at += hours{24}) {
    const auto now = kStart + at;
    const RotationStep step = Rotate(secret, now, at - changed, Options());
    if (!step.action.empty()) changed = at;
    steps += step.action.empty() ? 0 : 1;
    ca_steps += step.action.find("CA") != std::string::npos ? 1 : 0;
    secret = step.data;
    leaves.push_back(secret.at("tls.crt"));
    bundles.push_back(CaBundle(secret));
    // Others lag by one call at most. The settle time is shorter, so no two steps fall between.
    while (leaves.size() > 2) leaves.pop_front();
    while (bundles.size() > 2) bundles.pop_front();
    if (at.count() % 480 != 0 && step.action.empty()) continue;
    INFO(at.count() << " h: " << step.action);
    for (const std::string& leaf : leaves) {
      for (const std::string& bundle : bundles) {
        for (const hours skew : {hours{-1}, hours{0}, hours{1}}) REQUIRE(Accepts(bundle, leaf, now + skew));
      }
    }
  }
  CHECK(steps > 30);
  CHECK(ca_steps > 6);
  CHECK(steps < 200);
}

TEST_CASE("a second call changes nothing, and a damaged Secret is repaired") {
  const RotationOptions o = Options();
  SecretData secret = Rotate({}, kStart, kLong, o).data;
  CHECK(Rotate(secret, kStart, kLong, o).action.empty());
  SecretData broken = secret;
  broken["tls.key"] = "not a key";
  CHECK(Rotate(broken, kStart, kLong, o).action == "made a certificate");
  CHECK(Rotate(broken, kStart, kLong, o).data.at("ca.crt") == secret.at("ca.crt"));
  broken = secret;
  broken["ca.key"] = broken["tls.key"];
  CHECK(Rotate(broken, kStart, kLong, o).action == "made the first CA and certificate");
  RotationOptions renamed = o;
  renamed.names = {"other.ns.svc"};
  CHECK(Rotate(secret, kStart, kLong, renamed).action == "renewed the certificate");
  std::string error;
  CHECK(KeyPair::Parse(secret.at("tls.crt"), secret.at("tls.key"), error) != nullptr);
  CHECK(KeyPair::Parse(secret.at("tls.crt"), secret.at("ca.key"), error) == nullptr);
  CHECK(error == "the key does not belong to the certificate");
}

TEST_CASE("a new CA signs only after the settle time, even if clocks differ by hours") {
  const RotationOptions o = Options();
  const auto steps = [&](const SecretData& secret, system_clock::time_point now, std::chrono::seconds unchanged) {
    return Rotate(secret, now, unchanged, o).action;
  };
  SecretData secret = Rotate({}, kStart, kLong, o).data;
  // After two thirds of the CA's lifetime, the replica with the slow clock makes the next one.
  const auto later = kStart + hours{24 * 500};
  secret = Rotate(secret, later, kLong, o).data;  // renews the certificate
  const RotationStep made = Rotate(secret, later, kLong, o);
  REQUIRE(made.action == "made the next CA");
  // Another replica's clock is an hour ahead. By the certificate's dates the wait is over; by its steady clock it has
  // just begun.
  CHECK(steps(made.data, later + hours{1}, std::chrono::seconds{0}).empty());
  CHECK(steps(made.data, later + hours{1}, o.settle_time - std::chrono::seconds{1}).empty());
  CHECK(steps(made.data, later + hours{1}, o.settle_time) == "the next CA signs from now on");
  // A replica with a clock an hour behind must not wait longer.
  const RotationStep signs = Rotate(made.data, later - hours{1}, o.settle_time, o);
  REQUIRE(signs.action == "the next CA signs from now on");
  CHECK(steps(signs.data, later + hours{1}, std::chrono::seconds{0}).empty());
  CHECK(steps(signs.data, later + hours{1}, o.settle_time) == "removed the old CA from the trusted ones");
  // API servers with a clock an hour ahead or behind accept both certificates.
  for (const hours skew : {hours{-1}, hours{0}, hours{1}}) {
    CHECK(Accepts(CaBundle(signs.data), signs.data.at("tls.crt"), later + skew));
    CHECK(Accepts(CaBundle(signs.data), made.data.at("tls.crt"), later + skew));
  }
}
