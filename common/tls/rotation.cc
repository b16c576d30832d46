#include "common/tls/rotation.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <memory>
#include <optional>

namespace sluice {
namespace {

using Time = std::chrono::system_clock::time_point;

// Certificates are valid from a time before their creation, because the clocks of a cluster differ.
constexpr std::chrono::hours kBackdate{2};

template <auto F>
struct Free {
  template <typename T>
  void operator()(T* p) const {
    F(p);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

struct Pair {
  Certificate certificate;
  PrivateKey key;
};

Time ToTime(const ASN1_TIME* time) {
  std::tm tm{};
  return ASN1_TIME_to_tm(time, &tm) == 1 ? std::chrono::system_clock::from_time_t(timegm(&tm)) : Time{};
}
Time End(const Pair& p) { return ToTime(X509_get0_notAfter(p.certificate.get())); }

std::string Get(const SecretData& data, const std::string& key) {
  const auto it = data.find(key);
  return it == data.end() ? std::string() : it->second;
}

Certificate ReadCertificate(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

std::optional<Pair> Read(const SecretData& data, const std::string& name) {
  const std::string pem = Get(data, name + ".key");
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Pair p{ReadCertificate(Get(data, name + ".crt")),
         PrivateKey(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr))};
  if (p.certificate == nullptr || p.key == nullptr || X509_check_private_key(p.certificate.get(), p.key.get()) != 1) {
    return std::nullopt;
  }
  return p;
}

std::string Drain(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

void Write(SecretData& data, const std::string& name, const Pair& p) {
  const Bio certificate(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(certificate.get(), p.certificate.get());
  data[name + ".crt"] = Drain(certificate.get());
  const Bio key(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(key.get(), p.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  data[name + ".key"] = Drain(key.get());
}

void Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr) return;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer`, or by itself.
Pair Make(const std::string& name, const std::vector<std::string>& dns, const Pair* issuer, Time now, Time end) {
  Pair p{Certificate(X509_new()), PrivateKey(EVP_EC_gen("P-256"))};
  X509* c = p.certificate.get();
  X509* signer = issuer == nullptr ? c : issuer->certificate.get();
  X509_set_version(c, 2);
  unsigned char serial[16];
  RAND_bytes(serial, sizeof(serial));
  serial[0] &= 0x7f;
  BIGNUM* number = BN_bin2bn(serial, sizeof(serial), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c));
  BN_free(number);
  ASN1_TIME_set(X509_getm_notBefore(c), std::chrono::system_clock::to_time_t(now - kBackdate));
  ASN1_TIME_set(X509_getm_notAfter(c), std::chrono::system_clock::to_time_t(end));
  X509_NAME* subject = X509_get_subject_name(c);
  // A common name has at most 64 characters; clients check only the alternative names.
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()),
                             static_cast<int>(std::min<size_t>(name.size(), 64)), -1, 0);
  X509_set_issuer_name(c, X509_get_subject_name(signer));
  X509_set_pubkey(c, p.key.get());
  Extend(c, signer, NID_subject_key_identifier, "hash");
  if (issuer == nullptr) {
    Extend(c, signer, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
    Extend(c, signer, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    Extend(c, signer, NID_authority_key_identifier, "keyid");
    Extend(c, signer, NID_basic_constraints, "critical,CA:FALSE");
    Extend(c, signer, NID_key_usage, "critical,digitalSignature");
    Extend(c, signer, NID_ext_key_usage, "serverAuth");
    std::string names;
    for (const std::string& d : dns) names += (names.empty() ? "DNS:" : ",DNS:") + d;
    Extend(c, signer, NID_subject_alt_name, names);
  }
  X509_sign(c, issuer == nullptr ? p.key.get() : issuer->key.get(), EVP_sha256());
  return p;
}

Pair MakeCa(Time now, const RotationOptions& o) {
  // The name holds the time: a chain's builder could confuse two CAs of one name.
  return Make("sluice webhook CA " + std::to_string(std::chrono::system_clock::to_time_t(now)), {}, nullptr, now,
              now + o.ca_lifetime);
}

Pair MakeLeaf(const Pair& ca, Time now, const RotationOptions& o) {
  return Make(o.names.front(), o.names, &ca, now, std::min(now + o.leaf_lifetime, End(ca)));
}

bool IsSignedBy(const Pair& leaf, const Pair& ca) {
  return X509_verify(leaf.certificate.get(), X509_get0_pubkey(ca.certificate.get())) == 1;
}

bool HasNames(const Pair& leaf, const std::vector<std::string>& names) {
  for (const std::string& n : names) {
    if (X509_check_host(leaf.certificate.get(), n.c_str(), n.size(), 0, nullptr) != 1) return false;
  }
  return true;
}

}  // namespace

RotationStep Rotate(const SecretData& secret, Time now, std::chrono::seconds unchanged, const RotationOptions& o) {
  RotationStep step{secret, {}};
  SecretData& data = step.data;
  std::optional<Pair> ca = Read(data, "ca");
  if (!ca || End(*ca) <= now) {
    data.clear();
    const Pair fresh = MakeCa(now, o);
    Write(data, "ca", fresh);
    Write(data, "tls", MakeLeaf(fresh, now, o));
    step.action = ca ? "made a new CA, because the old one had expired" : "made the first CA and certificate";
    return step;
  }
  const std::optional<Pair> next = Read(data, "next");
  if (next && unchanged >= o.settle_time) {
    data["old.crt"] = data["ca.crt"];
    Write(data, "ca", *next);
    Write(data, "tls", MakeLeaf(*next, now, o));
    data.erase("next.crt");
    data.erase("next.key");
    step.action = "the next CA signs from now on";
    return step;
  }
  const std::optional<Pair> leaf = Read(data, "tls");
  if (!leaf || !IsSignedBy(*leaf, *ca) || !HasNames(*leaf, o.names) || End(*leaf) - now < o.leaf_lifetime / 3) {
    // A CA near its end signs short certificates; they are not renewed again and again.
    const bool ends_with_ca = leaf && IsSignedBy(*leaf, *ca) && HasNames(*leaf, o.names) && End(*leaf) == End(*ca);
    if (!ends_with_ca) {
      Write(data, "tls", MakeLeaf(*ca, now, o));
      step.action = leaf ? "renewed the certificate" : "made a certificate";
      return step;
    }
  }
  if (!next && End(*ca) - now < o.ca_lifetime / 3) {
    Write(data, "next", MakeCa(now, o));
    step.action = "made the next CA";
    return step;
  }
  if (data.contains("old.crt") && unchanged >= o.settle_time) {
    data.erase("old.crt");
    step.action = "removed the old CA from the trusted ones";
  }
  return step;
}

std::string CaBundle(const SecretData& secret) {
  return Get(secret, "ca.crt") + Get(secret, "next.crt") + Get(secret, "old.crt");
}

}  // namespace sluice
