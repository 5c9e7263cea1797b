// Checks that several models make of the arguments of a forward call, in the same words: each message names the
// argument, the model, what was given and what is expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/value.h"

namespace shardproof {

class ArgumentChecks {
 public:
  // Both must outlive the checks.
  ArgumentChecks(const std::string& model, const Arguments& arguments) : model_(model), arguments_(arguments) {}

  // unsupported_error unless the argument is absent or none; `why` ends the message.
  void must_be_none(Name name, std::string_view why) const;
  // The same as a rule, for settings that switch a feature on: none, false and zero pass.
  void must_be_off(Name name, std::string_view why) const;
  // unsupported_error if return_dict is true.
  void must_return_a_tuple() const;
  // shape_error unless `fits`: "argument 'x' of M is float32 [2]; expected ..".
  void shape(Name name, const Tensor& tensor, bool fits, std::string_view expected) const;
  // The required tensor [batch, tokens, width]; `meaning` says it in words.
  const Tensor& sequence(Name name, std::string_view meaning) const;
  // The same, with the given batch.
  const Tensor& sequence(Name name, std::int64_t batch, std::string_view meaning) const;
  // A tensor [batch] or [1], or nothing.
  void per_item(Name name, std::int64_t batch) const;
  // The required tensor [batch] or [batch, tokens]. How many tokens is the module's to check that they meet: a plan may
  // have divided them.
  void per_item_or_token(Name name, std::int64_t batch) const;
  // The required ids [tokens, axes], or with a batch axis of at least one entry.
  void position_ids(Name name) const;

 private:
  const std::string& model_;
  const Arguments& arguments_;
};

}  // namespace shardproof
