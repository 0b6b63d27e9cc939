#include "support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace tetrad::testing {
namespace {

constexpr int kPatienceMs = 20'000;

}  // namespace

RawClient::RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) throw std::runtime_error("cannot connect");
}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RawClient::receive() {
  pollfd readable{socket_, POLLIN, 0};
  if (::poll(&readable, 1, kPatienceMs) <= 0) return false;
  char bytes[16384];
  const ssize_t received = ::recv(socket_, bytes, sizeof bytes, 0);
  if (received <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(received));
  return true;
}

std::string RawClient::read_until(std::string_view text) {
  std::size_t at;
  while ((at = buffer_.find(text)) == std::string::npos)
    if (!receive()) return std::exchange(buffer_, {});
  const std::size_t end = at + text.size();
  std::string all = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return all;
}

std::string RawClient::read_response() {
  std::string response = read_until("\r\n\r\n");
  constexpr std::string_view kLength = "Content-Length: ";
  const std::size_t at = response.find(kLength);
  if (at == std::string::npos) return response;
  const auto length = static_cast<std::size_t>(std::atoll(response.c_str() + at + kLength.size()));
  while (buffer_.size() < length)
    if (!receive()) break;
  response += buffer_.substr(0, length);
  buffer_.erase(0, length);
  return response;
}

std::string RawClient::read_to_end() {
  while (receive()) {
  }
  return std::exchange(buffer_, {});
}

bool RawClient::closed_by_server() {
  pollfd readable{socket_, POLLIN, 0};
  char bytes[16384];
  while (::poll(&readable, 1, kPatienceMs) > 0)
    if (::recv(socket_, bytes, sizeof bytes, 0) <= 0) return true;
  return false;
}

void RawClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void RawClient::reset() {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

void RawClient::limit_receive_buffer(int bytes) { ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes); }

}  // namespace tetrad::testing
