// The server under bad input, slow clients, changing certificates and its own end.
#include <arpa/inet.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "webhook/certificates/rotation.h"
#include "webhook/server/service.h"

namespace {

using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test
using namespace std::chrono_literals;
using std::chrono::system_clock;

SecretData MakeCertificate(system_clock::time_point now = system_clock::now()) {
  RotationOptions o;
  o.names = {"localhost"};
  return Rotate({}, now, {}, o).data;
}

HttpOptions Loopback() {
  HttpOptions o;
  o.address = "127.0.0.1";
  return o;
}

// A service that listens, with a certificate.
struct Running {
  explicit Running(HttpOptions https = Loopback())
      : service({}, std::move(https), Loopback(), [](const std::string&) {}), secret(MakeCertificate()) {
    Use(secret);
    REQUIRE(service.Start().empty());
  }
  void Use(const SecretData& data) {
    std::string error;
    service.certificates().Set(KeyPair::Parse(data.at("tls.crt"), data.at("tls.key"), error));
    REQUIRE(error.empty());
  }
  std::unique_ptr<httplib::SSLClient> Client() const {
    auto client = std::make_unique<httplib::SSLClient>("127.0.0.1", service.port());
    client->enable_server_certificate_verification(false);
    client->set_keep_alive(true);
    client->set_read_timeout(20s);
    return client;
  }
  Service service;
  SecretData secret;
};

std::string Review(const std::string& uid, const std::string& fraction = "0.5") {
  const Json review = {{"apiVersion", "admission.k8s.io/v1"},
                       {"kind", "AdmissionReview"},
                       {"request",
                        {{"uid", uid},
                         {"operation", "CREATE"},
                         {"namespace", "team-a"},
                         {"dryRun", true},
                         {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                         {"object",
                          {{"metadata", {{"annotations", {{"sluice.dev/gpu-fraction", fraction}}}}},
                           {"spec", {{"containers", {{{"name", "a"}, {"image", "x"}}}}}}}}}}};
  return review.dump();
}

int Post(httplib::SSLClient& client, const std::string& body, const httplib::Headers& headers = {},
         const char* path = "/mutate") {
  const auto r = client.Post(path, headers, body, "application/json");
  return r ? r->status : -static_cast<int>(r.error());
}

// A TLS connection that does what no honest client does.
class Raw {
 public:
  explicit Raw(uint16_t port) : context_(SSL_CTX_new(TLS_client_method())) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Raw() {
    if (ssl_ != nullptr) SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(fd_);
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  bool Handshake() {
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    return connected_ && SSL_connect(ssl_) == 1;
  }
  void Send(std::string_view text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  // What the server says next.
  std::string Some() {
    char chunk[4096];
    const int n = SSL_read(ssl_, chunk, sizeof(chunk));
    return {chunk, static_cast<size_t>(std::max(n, 0))};
  }
  // Until the server closes.
  std::string All() {
    std::string out;
    char chunk[4096];
    for (int n = 0; (n = SSL_read(ssl_, chunk, sizeof(chunk))) > 0;) out.append(chunk, static_cast<size_t>(n));
    return out;
  }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  int fd_ = -1;
  bool connected_ = false;
};

std::string Exchange(uint16_t port, std::string_view request) {
  Raw raw(port);
  REQUIRE(raw.Handshake());
  raw.Send(request);
  return raw.All();
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace

TEST_CASE("reviews are answered with their uid; what is no review is a clear 400") {
  const Running r;
  const auto client = r.Client();
  const auto good = client->Post("/mutate", Review("u-42"), "application/json");
  REQUIRE(good);
  const Json answer = Json::parse(good->body);
  CHECK(answer["response"]["uid"] == "u-42");
  CHECK(answer["response"]["allowed"] == true);
  CHECK(answer["response"]["patchType"] == "JSONPatch");
  CHECK(Json::parse(client->Post("/mutate", Review("u", "7.5"), "application/json")->body)["response"]["allowed"] ==
        false);

  std::string deep(200, '[');
  for (const auto& [name, body] : std::vector<std::pair<std::string, std::string>>{
           {"empty", ""},
           {"truncated", Review("u").substr(0, 100)},
           {"not UTF-8", "{\"a\":\"\xff\"}"},
           {"duplicate key", R"({"kind":"AdmissionReview","kind":"AdmissionReview"})"},
           {"deep", deep},
           {"wrong kind", R"({"kind":"Pod","apiVersion":"v1"})"},
           {"wrong version",
            R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}})"},
           {"no uid", R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}})"},
           {"trailing", Review("u") + "x"}}) {
    INFO(name);
    const auto bad = client->Post("/mutate", body, "application/json");
    REQUIRE(bad);
    CHECK(bad->status == 400);
    CHECK(!bad->body.empty());
  }
  Json other = Json::parse(Review("u"));
  other["request"]["resource"]["resource"] = "configmaps";
  const Json allowed = Json::parse(client->Post("/mutate", other.dump(), "application/json")->body);
  CHECK(allowed["response"]["allowed"] == true);
  CHECK(!allowed["response"].contains("patch"));
  CHECK(client->Get("/nothing")->status == 404);
}

TEST_CASE("what is too large, compressed, chunked or ambiguous is refused before it is read") {
  const Running r;
  const uint16_t port = r.service.port();
  const std::string head = "POST /mutate HTTP/1.1\r\nHost: x\r\n";
  CHECK(Exchange(port, head + "Content-Length: 3145729\r\n\r\n").starts_with("HTTP/1.1 413"));
  CHECK(Exchange(port, head + "Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello").starts_with("HTTP/1.1 415"));
  CHECK(Exchange(port, head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n").starts_with("HTTP/1.1 411"));
  CHECK(Exchange(port, head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "Content-Length: -1\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "Content-Length : 5\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, "GET / HTTP/9\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "X: " + std::string(20000, 'a')).starts_with("HTTP/1.1 431"));
  const std::string body = Review("u");
  const std::string expecting = Exchange(port, head + "Connection: close\r\nExpect: 100-continue\r\nContent-Length: " +
                                                   std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK(expecting.find("HTTP/1.1 200") != std::string::npos);
  // Two requests in one write are two answers.
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: x\r\n";
  const std::string both = Exchange(port, one + "\r\n" + one + "Connection: close\r\n\r\n");
  CHECK(both.find("HTTP/1.1 200", 5) != std::string::npos);
  CHECK(Post(*r.Client(), std::string(3 << 20, ' ')) == 400);  // exactly 3 MiB is read, and is no JSON
}

TEST_CASE("500 slow connections beside normal load; the deadline closes them") {
  HttpOptions options = Loopback();
  options.request = 3s;
  options.handshake = 3s;
  const Running r(options);
  std::vector<std::unique_ptr<Raw>> slow;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(std::make_unique<Raw>(r.service.port()));
    if (i % 5 != 0) continue;  // the others do not even shake hands
    REQUIRE(slow.back()->Handshake());
    slow.back()->Send("POST /mutate HTTP/1.1\r\nContent-Le");
  }
  const auto client = r.Client();
  for (int i = 0; i < 200; ++i) REQUIRE(Post(*client, Review("u")) == 200);
  CHECK(slow[0]->All().empty());  // returns when the server has closed it
  for (int i = 0; i < 100 && r.service.metrics_port() != 0; ++i) {
    const auto text = httplib::Client("127.0.0.1", r.service.metrics_port()).Get("/metrics");
    REQUIRE(text);
    if (text->body.find("sluice_webhook_connections 1\n") != std::string::npos) break;
    REQUIRE(i < 99);
    std::this_thread::sleep_for(100ms);
  }
}

TEST_CASE("more connections than allowed push out those that wait longest") {
  HttpOptions options = Loopback();
  options.connections = 8;
  const Running r(options);
  std::vector<std::unique_ptr<Raw>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<Raw>(r.service.port()));
  CHECK(Post(*r.Client(), Review("u")) == 200);
}

TEST_CASE("an overloaded server refuses at once and recovers") {
  HttpOptions options = Loopback();
  options.queue = 1;
  options.workers = 1;
  const Running r(options);
  std::atomic<int> good = 0, refused = 0, other = 0;
  {
    Json large = Json::parse(Review("u"));
    for (int i = 0; i < 2000; ++i) {
      large["request"]["object"]["spec"]["containers"].push_back({{"name", "c" + std::to_string(i)}, {"image", "x"}});
    }
    large["request"]["object"]["metadata"]["annotations"] = {{"gpu-fraction.sluice.dev/a", "0.5"}};
    const std::string body = large.dump();
    std::vector<std::jthread> clients;
    for (int t = 0; t < 8; ++t) {
      clients.emplace_back([&] {
        const auto client = r.Client();
        for (int i = 0; i < 25; ++i) {
          const int status = Post(*client, body);
          ++(status == 200 ? good : status == 503 ? refused : other);
        }
      });
    }
  }
  INFO(good << " answered, " << refused << " refused, " << other << " otherwise");
  CHECK(good > 0);
  CHECK(refused > 0);
  CHECK(other == 0);
  CHECK(Post(*r.Client(), Review("u")) == 200);
}

TEST_CASE("hundreds of requests sent ahead in one write are refused one by one") {
  HttpOptions options = Loopback();
  options.queue = 0;
  const Running r(options);
  std::string requests;
  constexpr int kCount = 3000;
  for (int i = 1; i < kCount; ++i) requests += "GET /healthz HTTP/1.1\r\n\r\n";
  requests += "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
  Raw raw(r.service.port());
  REQUIRE(raw.Handshake());
  std::jthread writer([&] { raw.Send(requests); });  // beside the reading: neither side's buffer holds all of it
  const std::string replies = raw.All();
  int refused = 0;
  for (size_t at = 0; (at = replies.find("HTTP/1.1 503", at)) != std::string::npos; ++at) ++refused;
  CHECK(refused == kCount);
}

TEST_CASE("more connections than descriptors: the oldest go, the newest is answered") {
  int tell[2], told[2];
  REQUIRE(pipe(tell) == 0);
  REQUIRE(pipe(told) == 0);
  // The clients have a process of their own, since the server's has no descriptors to spare.
  const pid_t child = fork();
  if (child == 0) {
    uint16_t port = 0;
    int good = 0;
    if (read(tell[0], &port, sizeof(port)) == sizeof(port)) {
      std::vector<std::unique_ptr<Raw>> idle;
      for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Raw>(port));
      Raw last(port);
      if (last.Handshake()) {
        last.Send("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
        good = last.All().starts_with("HTTP/1.1 200") ? 1 : 0;
      }
    }
    (void)!write(told[1], &good, sizeof(good));
    _exit(0);
  }
  int good = 0;
  {
    const Running r;
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit lowered{100, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    const uint16_t port = r.service.port();
    REQUIRE(write(tell[1], &port, sizeof(port)) == sizeof(port));
    REQUIRE(read(told[0], &good, sizeof(good)) == sizeof(good));
    setrlimit(RLIMIT_NOFILE, &before);
  }
  CHECK(good == 1);
  waitpid(child, nullptr, 0);
  for (const int fd : {tell[0], tell[1], told[0], told[1]}) close(fd);
}

TEST_CASE("certificates rotated under load: no request fails, new connections get the new one") {
  Running r;
  std::atomic<bool> stop = false;
  std::atomic<int> sent = 0, failed = 0;
  std::vector<std::jthread> load;
  for (int t = 0; t < 2; ++t) {
    load.emplace_back([&, t] {
      auto client = r.Client();
      for (int i = 0; !stop; ++i) {
        if (t == 1 && i % 3 == 0) client = r.Client();  // one keeps its connection, one makes new ones
        failed += Post(*client, Review("u")) == 200 ? 0 : 1;
        ++sent;
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    r.Use(MakeCertificate());
    std::this_thread::sleep_for(20ms);
  }
  while (sent < 50) std::this_thread::sleep_for(10ms);
  stop = true;
  load.clear();
  CHECK(failed == 0);
}

TEST_CASE("certificate files: half written, of another key, removed, expired, behind a symlink swap") {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-tls-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const auto now = system_clock::now();
  const SecretData one = MakeCertificate(), two = MakeCertificate();
  CertificateStore store;
  FileReloader reloader(folder + "/..data/tls.crt", folder + "/..data/tls.key", store);
  std::string message;
  using Result = FileReloader::Result;
  CHECK(reloader.Poll(now, message) == Result::kBad);  // nothing there yet

  const auto place = [&](const std::string& version, const std::string& certificate, const std::string& key) {
    std::filesystem::create_directory(folder + "/" + version);
    Write(folder + "/" + version + "/tls.crt", certificate);
    Write(folder + "/" + version + "/tls.key", key);
    std::filesystem::create_symlink(version, folder + "/..tmp");
    std::filesystem::rename(folder + "/..tmp", folder + "/..data");  // as kubelet does
  };
  place("1", one.at("tls.crt"), one.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kLoaded);
  CHECK(reloader.Poll(now, message) == Result::kSame);
  const auto first = store.Current();
  place("2", two.at("tls.crt"), one.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kBad);
  CHECK(message.find("does not belong") != std::string::npos);
  place("3", two.at("tls.crt").substr(0, 200), two.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kBad);
  const SecretData old = MakeCertificate(now - std::chrono::hours(24 * 200));
  place("4", old.at("tls.crt"), old.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kBad);
  CHECK(message.find("expired") != std::string::npos);
  std::filesystem::remove(folder + "/..data");
  CHECK(reloader.Poll(now, message) == Result::kBad);
  CHECK(store.Current() == first);  // through all of it
  place("5", two.at("tls.crt"), two.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kLoaded);
  CHECK(store.Current() != first);
  std::filesystem::remove_all(folder);
}

TEST_CASE("ready only with a certificate that is valid, and not while ending; what is in flight is answered") {
  Service service({}, Loopback(), Loopback(), [](const std::string&) {});
  REQUIRE(service.Start().empty());
  httplib::Client plain("127.0.0.1", service.metrics_port());
  CHECK(plain.Get("/readyz")->status == 503);
  CHECK(plain.Get("/healthz")->status == 200);
  std::string error;
  const SecretData old = MakeCertificate(system_clock::now() - std::chrono::hours(24 * 200));
  service.certificates().Set(KeyPair::Parse(old.at("tls.crt"), old.at("tls.key"), error));
  CHECK(plain.Get("/readyz")->status == 503);
  const SecretData fresh = MakeCertificate();
  service.certificates().Set(KeyPair::Parse(fresh.at("tls.crt"), fresh.at("tls.key"), error));
  CHECK(plain.Get("/readyz")->status == 200);

  const std::string body = Review("last");
  Raw raw(service.port());
  REQUIRE(raw.Handshake());
  raw.Send("POST /mutate HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n");
  CHECK(raw.Some().starts_with("HTTP/1.1 100"));  // the server has its beginning
  raw.Send(body.substr(0, 50));
  service.Retire();
  CHECK(plain.Get("/readyz")->body == "ending\n");
  std::jthread drain([&] { service.Drain(10s); });
  std::this_thread::sleep_for(100ms);
  raw.Send(body.substr(50));
  CHECK(raw.All().starts_with("HTTP/1.1 200"));
}
