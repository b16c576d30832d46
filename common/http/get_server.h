// A plain HTTP server for GET alone: metrics, probes, read-only JSON.
#ifndef SLUICE_COMMON_HTTP_GET_SERVER_H_
#define SLUICE_COMMON_HTTP_GET_SERVER_H_

#include <functional>
#include <memory>
#include <string>

namespace sluice {

struct GetRequest {
  // The first value of a header, whatever its case; empty: it was not sent. Valid during the handler.
  std::function<std::string(const std::string& name)> header;
};

struct GetReply {
  int status = 200;
  std::string body;
  std::string type = "text/plain";
};

class GetServer {
 public:
  // Called on the server's threads, several at a time.
  using Handler = std::function<GetReply(const GetRequest&)>;

  // `threads`: connections that are answered at once. Each ends after one answer, or after five seconds of silence.
  explicit GetServer(int threads);
  ~GetServer();  // returns when the last handler has

  // Before Start. Other paths get 404.
  void Get(const std::string& path, Handler handler);
  // False: `error` holds a sentence with the address. Addresses: listen_address.h.
  bool Start(const std::string& address, std::string* error);
  int port() const;  // the one that was taken, where the address has 0

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_HTTP_GET_SERVER_H_
