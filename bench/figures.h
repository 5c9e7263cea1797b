// How the programs of this folder print what they measured: one row a figure, with the bar that it is held to, so that
// one command can gather them all. `finish` is the exit status: 1 where a figure misses its bar.
#pragma once

#include <string_view>

#include <fmt/format.h>

namespace shardproof::bench {

class Figures {
 public:
  explicit Figures(std::string_view title) { fmt::print("{}\n", title); }

  void at_most(std::string_view name, double value, double bar, std::string_view unit) {
    print(name, value, "at most", bar, unit, value <= bar);
  }
  void at_least(std::string_view name, double value, double bar, std::string_view unit) {
    print(name, value, "at least", bar, unit, value >= bar);
  }
  // A figure without a bar.
  void tell(std::string_view name, double value, std::string_view unit) {
    fmt::print("  {:<66} {:>10.4g} {}\n", name, value, unit);
  }
  int finish() const { return missed_ ? 1 : 0; }

 private:
  void print(std::string_view name, double value, std::string_view side, double bar, std::string_view unit,
             bool holds) {
    fmt::print("  {:<66} {:>10.4g} {:<5} {:>8} {:>7.4g}  {}\n", name, value, unit, side, bar,
               holds ? "holds" : "MISSES");
    missed_ = missed_ || !holds;
  }
  bool missed_ = false;
};

}  // namespace shardproof::bench
