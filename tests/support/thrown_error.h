// What a piece of code throws, as a value to compare: every refusal has a test of its kind and its message. Anything
// else than shardproof::Error passes through, so that it fails the test by itself.
#pragma once

#include <optional>
#include <ostream>
#include <string>

#include "core/error.h"

namespace shardproof::test {

struct ThrownError {
  ErrorKind kind = ErrorKind::internal_error;
  std::string message;
  friend bool operator==(const ThrownError&, const ThrownError&) = default;
  friend void PrintTo(const ThrownError& error, std::ostream* out) {
    *out << error_kind_name(error.kind) << ": " << error.message;
  }
};

// The Error that `code` throws, or nothing.
template <class Code>
std::optional<ThrownError> thrown_by(const Code& code) {
  try {
    code();
  } catch (const Error& error) {
    return ThrownError{error.kind(), error.what()};
  }
  return std::nullopt;
}

// The kind and the message of what `code` throws, or "completed".
template <class Code>
std::string outcome_of(const Code& code) {
  const auto error = thrown_by(code);
  return error ? std::string(error_kind_name(error->kind)) + ": " + error->message : "completed";
}

inline std::optional<ThrownError> thrown(ErrorKind kind, std::string message) {
  return ThrownError{kind, std::move(message)};
}

}  // namespace shardproof::test
