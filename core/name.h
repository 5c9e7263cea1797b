// Interned names: module, parameter and argument names occur once in memory, however many simulated ranks hold a tree.
// They are compared by address and never freed.
#pragma once

#include <string>
#include <string_view>

namespace shardproof {

class Name {
 public:
  Name() : Name(std::string_view{}) {}
  Name(std::string_view text);
  Name(const char* text) : Name(std::string_view(text)) {}
  Name(const std::string& text) : Name(std::string_view(text)) {}
  const std::string& text() const { return *text_; }
  bool empty() const { return text_->empty(); }
  friend bool operator==(Name a, Name b) { return a.text_ == b.text_; }

 private:
  const std::string* text_;
};

}  // namespace shardproof
