// The one exception type of the project. Every error carries a kind (the vocabulary of the parallelism specification),
// and a message that names the module path, file, option or rank concerned, the offending value and what would be
// legal.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace shardproof {

enum class ErrorKind {
  config_error,       // a configuration that can never work
  unsupported_error,  // known, but not offered
  plan_error,         // plan and model do not fit
  shape_error,        // sizes of this call do not fit
  state_error,        // the wrong moment: applied twice, used before it arrived
  type_error,         // element types that must not be mixed
  file_error,         // a file that is missing, malformed or cannot be written
  usage_error,        // the command line or an argument of the public interface is wrong
  collective_error,   // members of a group disagree about a collective operation
  deadlock_error,     // no rank can run
  internal_error,     // a defect of this program
};

// The spelling used in messages and results, for instance "shape_error".
std::string_view error_kind_name(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// An Error that says "this configuration is not legal here, and which would be": the request is refused by a rule that
// every rank decides alike, as opposed to something that went wrong.
class Refusal : public Error {
 public:
  using Error::Error;
};

// Throws Error(kind, formatted message).
[[noreturn]] void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args arguments);

template <class... Arguments>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  fail_with(kind, format, fmt::make_format_args(arguments...));
}

[[noreturn]] void refuse_with(ErrorKind kind, fmt::string_view format, fmt::format_args arguments);

template <class... Arguments>
[[noreturn]] void refuse(ErrorKind kind, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  refuse_with(kind, format, fmt::make_format_args(arguments...));
}

}  // namespace shardproof

// Throws shardproof::Error unless `condition` holds: SHARDPROOF_CHECK(n > 0, config_error, "degree {} must be
// positive", n).
#define SHARDPROOF_CHECK(condition, kind, ...)                        \
  do {                                                                \
    if (!(condition)) [[unlikely]] {                                  \
      ::shardproof::fail(::shardproof::ErrorKind::kind, __VA_ARGS__); \
    }                                                                 \
  } while (false)

// The same, throwing shardproof::Refusal.
#define SHARDPROOF_REFUSE_UNLESS(condition, kind, ...)                  \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::shardproof::refuse(::shardproof::ErrorKind::kind, __VA_ARGS__); \
    }                                                                   \
  } while (false)
