// One line on standard error that says what is being done, rewritten in place, and only where a person looks at it: on
// a terminal.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardproof {

class Progress {
 public:
  enum class Show : std::uint8_t { never, always };

  // Shown if standard error is a terminal.
  Progress();
  explicit Progress(Show show) : is_shown_(show == Show::always) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "3/84 base: ring ring=2"; `done` counts what is finished.
  void step(int done, int total, std::string_view what);
  // Takes the line away again.
  void clear();

 private:
  bool is_shown_ = false;
  bool has_line_ = false;
};

}  // namespace shardproof
