// What a model says to a configuration with one entry replaced: the same few lines for every model, so that each test
// only names the entry.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "core/value.h"

namespace shardproof::test {

// The message that the hostile configuration of `model` ("flux2") is refused with when `key` has this value; "accepted"
// if it is not.
std::string refusal_of(std::string_view model, std::string_view key, Json value);

// A list of lists of numbers, written as JSON.
NestedNumbers nested_numbers(const Json& json);

}  // namespace shardproof::test
