// The switch of the zoo: at most one fault is on, and it acts only in code that a simulated rank runs, so that the
// dense run which it is compared with stays healthy.
#pragma once

#include <cstdint>
#include <set>
#include <string_view>

namespace shardproof::zoo {

// A fault's number: a hash of its name, so that generated code does not change when other faults come or go.
constexpr std::uint64_t id(std::string_view name) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

// Whether the fault is on and this thread runs a rank. Remembers that the question was answered with yes.
bool active(std::uint64_t fault);

// Remembers during its lifetime which faults' statements ranks come to: no other fault can change such a run.
class ReachRecorder {
 public:
  // state_error if another one is at work.
  ReachRecorder();
  ~ReachRecorder();
  ReachRecorder(const ReachRecorder&) = delete;
  ReachRecorder& operator=(const ReachRecorder&) = delete;
  // Their numbers.
  std::set<std::uint64_t> reached() const;
};

// Switches a fault on for its lifetime.
class FaultSwitch {
 public:
  // state_error if another one is on.
  explicit FaultSwitch(std::string_view name);
  ~FaultSwitch();
  FaultSwitch(const FaultSwitch&) = delete;
  FaultSwitch& operator=(const FaultSwitch&) = delete;
  // Whether any rank came to the faulty statement since.
  bool was_reached() const;
};

}  // namespace shardproof::zoo
