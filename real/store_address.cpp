#include "real/store_address.h"

#include <charconv>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {

std::string StoreAddress::text() const {
  if (ports.empty()) return "nowhere";
  const bool has_colon = host.find(':') != std::string::npos;
  std::string text = fmt::format("{}:{}", has_colon ? fmt::format("[{}]", host) : host, ports.front());
  if (ports.size() > 1) text += fmt::format(" or one of {} more ports up to {}", ports.size() - 1, ports.back());
  return text;
}

StoreAddress address_from(const std::string& option, std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    host = {};
  }
  SHARDPROOF_CHECK(colon != std::string_view::npos && !host.empty(), usage_error,
                   "{}: '{}' is not possible; expected HOST:PORT, such as 127.0.0.1:29500 or [::1]:29500", option,
                   printable(text));
  return {std::string(host), {port_from(option, text.substr(colon + 1), text)}};
}

int port_from(std::string_view option, std::string_view text, std::string_view whole) {
  constexpr int kMaxPort = 65535;
  int port = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool is_number = status == std::errc{} && end == text.data() + text.size();
  SHARDPROOF_CHECK(is_number && port >= 1 && port <= kMaxPort, usage_error,
                   "{}: '{}' is not possible; expected HOST:PORT with a port from 1 to {}", option, printable(whole),
                   kMaxPort);
  return port;
}

}  // namespace shardproof
