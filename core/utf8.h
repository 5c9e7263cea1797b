// UTF-8 as the standard has it (Unicode, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF. Used
// where text leaves the program: messages, JSON, tensor names.
#pragma once

#include <cstddef>
#include <string_view>

namespace shardproof {

// Bytes (1 to 4) of the character at the start of `text`; 0 if it does not start with a valid one or is empty.
std::size_t utf8_length(std::string_view text);
// True if the whole text is valid.
bool is_utf8(std::string_view text);

}  // namespace shardproof
