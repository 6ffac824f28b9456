// TestClient is a small blocking HTTP client: it sends raw bytes for tests of misbehaving clients, and parses
// answers for others. Every wait has a generous deadline, so that a hanging server fails the test instead of
// blocking it.
#pragma once

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace hadal::server::testing {

struct ClientResponse {
  int status = 0;                              // 0: no complete answer arrived
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // decoded
  bool chunked = false;
};

class TestClient {
 public:
  static constexpr int kDeadlineMs = 60'000;

  explicit TestClient(uint16_t port, bool ipv6 = false, int receive_buffer = 0) {
    fd_ = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer != 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    int result = 0;
    if (ipv6) {
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(port);
      address.sin6_addr = in6addr_loopback;
      result = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    } else {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      result = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    }
    if (result != 0) close();
  }
  virtual ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with a reset instead of an orderly end.
  void reset() {
    const linger option{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &option, sizeof(option));
    close();
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }

  virtual bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Tells whether the server's thread has read everything that was sent (IPv4): by /proc/net/tcp, no bytes
  // are on the way to its socket any more, and none wait in it.
  bool server_has_read() const {
    int under_way = 0;
    if (::ioctl(fd_, SIOCOUTQ, &under_way) != 0 || under_way != 0) return false;
    sockaddr_in own{};
    sockaddr_in peer{};
    socklen_t size = sizeof(own);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size);
    ::getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &size);
    std::ifstream sockets("/proc/self/net/tcp");
    for (std::string line; std::getline(sockets, line);) {
      unsigned local = 0;
      unsigned remote = 0;
      unsigned waiting = 0;
      if (std::sscanf(line.c_str(), " %*u: %*x:%x %*x:%x %*x %*x:%x", &local, &remote, &waiting) == 3 &&
          local == ntohs(peer.sin_port) && remote == ntohs(own.sin_port))
        return waiting == 0;
    }
    return false;
  }

  // Reads once, waiting up to the deadline, and appends to `received`. Returns false at the end, on error or
  // on time-out.
  bool receive_some(int deadline_ms = kDeadlineMs) {
    if (!wait_readable(deadline_ms)) return false;
    char buffer[65536];
    const ssize_t n = receive_raw(buffer, sizeof(buffer));
    if (n <= 0) {
      at_end_ = true;
      return false;
    }
    received.append(buffer, static_cast<size_t>(n));
    return true;
  }
  // Reads until `received` contains `text`.
  bool receive_until(std::string_view text) {
    while (received.find(text) == received.npos)
      if (!receive_some()) return false;
    return true;
  }
  // Reads until the server closes; returns true if it did within the deadline.
  bool receive_to_end() {
    while (receive_some()) {
    }
    return at_end_;
  }
  // Returns true if the server has ended the connection.
  bool at_end() const { return at_end_; }

  // Removes one answer from the front of `received` and returns it. With `head_only`, it is the answer to a
  // HEAD request.
  ClientResponse receive_response(bool head_only = false) {
    ClientResponse out;
    size_t end;
    while ((end = received.find("\r\n\r\n")) == received.npos)
      if (!receive_some()) return {};
    const std::string head = received.substr(0, end + 2);
    received.erase(0, end + 4);
    const int status = std::atoi(head.c_str() + head.find(' ') + 1);
    for (size_t line = head.find("\r\n") + 2; line < head.size();) {
      const size_t stop = head.find("\r\n", line);
      const size_t colon = head.find(": ", line);
      std::string name = head.substr(line, colon - line);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      out.headers[name] = head.substr(colon + 2, stop - colon - 2);
      line = stop + 2;
    }
    if (head_only || status == 204 || status == 304 || status < 200) {
      out.status = status;
      return out;
    }
    if (const auto length = out.headers.find("content-length"); length != out.headers.end()) {
      const size_t n = std::strtoull(length->second.c_str(), nullptr, 10);
      while (received.size() < n)
        if (!receive_some()) return {};
      out.body = received.substr(0, n);
      received.erase(0, n);
    } else if (out.headers.count("transfer-encoding") != 0) {
      out.chunked = true;
      for (;;) {
        size_t line;
        while ((line = received.find("\r\n")) == received.npos)
          if (!receive_some()) return {};
        const size_t n = std::strtoull(received.c_str(), nullptr, 16);
        while (received.size() < line + 2 + n + 2)
          if (!receive_some()) return {};
        out.body.append(received, line + 2, n);
        received.erase(0, line + 2 + n + 2);
        if (n == 0) break;
      }
    } else {
      while (receive_some()) {
      }
      out.body = std::exchange(received, {});
    }
    out.status = status;
    return out;
  }

  ClientResponse get(std::string_view path, std::string_view extra_headers = "") {
    send("GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(extra_headers) + "\r\n");
    return receive_response();
  }
  ClientResponse post(std::string_view path, std::string_view body, std::string_view extra_headers = "") {
    send("POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(extra_headers) + "\r\n");
    send(body);
    return receive_response();
  }

  std::string received;  // read and not yet consumed

 protected:
  virtual bool wait_readable(int deadline_ms) {
    pollfd poll{fd_, POLLIN, 0};
    return fd_ >= 0 && ::poll(&poll, 1, deadline_ms) == 1;
  }
  virtual ssize_t receive_raw(char* buffer, size_t size) { return ::recv(fd_, buffer, size, 0); }

  int fd_ = -1;
  bool at_end_ = false;
};

}  // namespace hadal::server::testing
