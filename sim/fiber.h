// One fiber: a function with its own guarded stack that is resumed and yields (Boost.Context). The switches are
// announced to AddressSanitizer, ThreadSanitizer and valgrind. Rules of use: never yield inside a catch block and never
// hold a thread-local guard over a yield; a fiber is always resumed by the same thread; it is run to its end before it
// is destroyed.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace shardproof::sim {

inline constexpr std::size_t kFiberStackBytes = std::size_t{512} * 1024;
inline constexpr std::size_t kFiberGuardBytes = std::size_t{64} * 1024;

class Fiber {
 public:
  // `body` must not throw. Throws internal_error if no stack can be had.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it yields or ends. Called from outside the fiber.
  void resume();
  // Returns to the caller of resume(). Called from inside the fiber.
  void yield();
  bool ended() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardproof::sim
