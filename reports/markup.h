// Text as it may stand in XML and in HTML, whatever it holds: it often comes from files of strangers. What these
// formats have no character for, and what acts on a reader instead of being shown, is escaped as in messages (see
// printable in core/file.h), so that every output is valid and says what was there.
#pragma once

#include <string>
#include <string_view>

namespace shardproof {

// Between tags, or in an attribute with double quotes. Line ends stay: between tags as they are, in an attribute as
// references, since a reader would make blanks of them.
std::string markup_text(std::string_view text);
std::string markup_attribute(std::string_view text);

}  // namespace shardproof
