#include "sim/fiber.h"

#include <utility>

#include <boost/context/fiber.hpp>

#include "sim/fiber_stack.h"
#include "sim/memory_checkers.h"

namespace shardproof::sim {
namespace {

namespace context = boost::context;

// The stack belongs to Fiber; Boost only places its control block there.
struct BorrowedStack {
  context::stack_context allocate() { return {}; }
  void deallocate(context::stack_context&) noexcept {}
};

}  // namespace

struct Fiber::State {
  explicit State(std::function<void()> function) : body(std::move(function)), stack(acquire_stack()) {}
  ~State() {
    if (checked_fiber != nullptr) destroy_checked_fiber(checked_fiber);
    release_stack(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::function<void()> body;
  FiberStack stack;
  context::fiber fiber;   // where the body stands, while it does not run
  context::fiber caller;  // where resume() was called, while the body runs
  bool ended = false;
  void* caller_fake_stack = nullptr;
  void* fiber_fake_stack = nullptr;
  const void* caller_low = nullptr;
  std::size_t caller_bytes = 0;
  void* checked_fiber = nullptr;
  void* checked_caller = nullptr;
};

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>(std::move(body))) {
  State& state = *state_;
  context::stack_context place;
  place.sp = state.stack.top;
  place.size = state.stack.bytes();
  state.checked_fiber = create_checked_fiber();
  state.fiber = context::fiber(std::allocator_arg, context::preallocated(place.sp, place.size, place), BorrowedStack{},
                               [&state](context::fiber&& caller) {
                                 finish_switch(nullptr, &state.caller_low, &state.caller_bytes);
                                 state.caller = std::move(caller);
                                 state.body();
                                 state.ended = true;
                                 switch_checked_fiber(state.checked_caller);
                                 start_switch(nullptr, state.caller_low, state.caller_bytes);
                                 return std::move(state.caller);
                               });
}

Fiber::~Fiber() = default;

void Fiber::resume() {
  State& state = *state_;
  state.checked_caller = current_checked_fiber();
  start_switch(&state.caller_fake_stack, state.stack.low, state.stack.bytes());
  switch_checked_fiber(state.checked_fiber);
  state.fiber = std::move(state.fiber).resume();
  finish_switch(state.caller_fake_stack, nullptr, nullptr);
}

void Fiber::yield() {
  State& state = *state_;
  start_switch(&state.fiber_fake_stack, state.caller_low, state.caller_bytes);
  switch_checked_fiber(state.checked_caller);
  state.caller = std::move(state.caller).resume();
  finish_switch(state.fiber_fake_stack, &state.caller_low, &state.caller_bytes);
}

bool Fiber::ended() const { return state_->ended; }

}  // namespace shardproof::sim
