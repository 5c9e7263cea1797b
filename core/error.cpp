#include "core/error.h"

#include <fmt/format.h>

namespace shardproof {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::config_error: return "config_error";
    case ErrorKind::unsupported_error: return "unsupported_error";
    case ErrorKind::plan_error: return "plan_error";
    case ErrorKind::shape_error: return "shape_error";
    case ErrorKind::state_error: return "state_error";
    case ErrorKind::type_error: return "type_error";
    case ErrorKind::file_error: return "file_error";
    case ErrorKind::usage_error: return "usage_error";
    case ErrorKind::collective_error: return "collective_error";
    case ErrorKind::deadlock_error: return "deadlock_error";
    case ErrorKind::internal_error: return "internal_error";
  }
  return "unknown_error";
}

namespace {

// The text of an exception ends at its first NUL byte: one in a stranger's name would hide what follows.
std::string message_of(fmt::string_view format, fmt::format_args arguments) {
  std::string message = fmt::vformat(format, arguments);
  for (std::size_t at = message.find('\0'); at != std::string::npos; at = message.find('\0', at)) {
    message.replace(at, 1, "\\x00");
  }
  return message;
}

}  // namespace

void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args arguments) {
  throw Error(kind, message_of(format, arguments));
}

void refuse_with(ErrorKind kind, fmt::string_view format, fmt::format_args arguments) {
  throw Refusal(kind, message_of(format, arguments));
}

}  // namespace shardproof
