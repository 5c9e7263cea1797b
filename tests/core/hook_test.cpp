// The hook registry: an onion in order of registration, names that are unique, removal, display.
// A log of calls says who ran when; nothing is computed.
#include "core/hook.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/module.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using Log = std::vector<std::string>;

// Says in a log when it was called.
class LoggingModule final : public Module {
 public:
  explicit LoggingModule(Log& log, int depth = 0) : Module("LoggingModule"), log_(log) {
    if (depth > 0) add_child<LoggingModule>("child", log, depth - 1);
  }
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{"x", ArgumentKind::setting}};
    return kArguments;
  }
  Outputs forward(Arguments&) override {
    log_.push_back("forward");
    return Outputs(Tensor());
  }

 private:
  Log& log_;
};

class LoggingHook : public Hook {
 public:
  LoggingHook(Log& log, std::string name) : log_(log), name_(std::move(name)) {}
  std::string_view class_name() const override { return "LoggingHook"; }
  void pre_forward(Module&, Arguments&) override { log_.push_back(name_ + " pre"); }
  void post_forward(Module&, Outputs&) override { log_.push_back(name_ + " post"); }
  void reset() override { log_.push_back(name_ + " reset"); }

 protected:
  Log& log_;
  std::string name_;
};

class ReplacingHook final : public LoggingHook {
 public:
  using LoggingHook::LoggingHook;
  bool replaces_forward() const override { return true; }
  Outputs new_forward(Module&, Arguments&) override {
    log_.push_back(name_ + " instead");
    return Outputs(Tensor());
  }
};

class HookRegistryTest : public testing::Test {
 protected:
  void add(const std::string& name) { module.hooks().register_hook(name, std::make_unique<LoggingHook>(log, name)); }
  void add_replacing(const std::string& name) {
    module.hooks().register_hook(name, std::make_unique<ReplacingHook>(log, name));
  }
  Log log;
  LoggingModule module{log};
};

TEST_F(HookRegistryTest, RunsTheLastRegisteredHookOutermost) {
  add("first");
  add("second");
  module.call({});
  EXPECT_THAT(log, testing::ElementsAre("second pre", "first pre", "forward", "first post", "second post"));
}

TEST_F(HookRegistryTest, ReplacesEverythingInsideByTheOutermostReplacement) {
  add("inner");
  add_replacing("inner replacement");
  add_replacing("replacement");
  add("outer");
  module.call({});
  EXPECT_THAT(log, testing::ElementsAre("outer pre", "replacement pre", "replacement instead", "replacement post",
                                        "outer post"));
}

TEST_F(HookRegistryTest, RefusesANameThatIsTaken) {
  add("split");
  EXPECT_EQ(thrown_by([&] { add("split"); }),
            thrown(ErrorKind::state_error, "a hook named 'split' is registered already; remove it first"));
  module.call({});
  EXPECT_THAT(log, testing::ElementsAre("split pre", "forward", "split post"));
}

TEST_F(HookRegistryTest, RelinksTheChainWhenOneIsRemoved) {
  add("first");
  add("second");
  add("third");
  EXPECT_TRUE(module.hooks().remove("second"));
  EXPECT_FALSE(module.hooks().remove("second"));
  EXPECT_FALSE(module.hooks().remove("never there"));
  EXPECT_THAT(module.hooks().names(), testing::ElementsAre("first", "third"));
  module.call({});
  EXPECT_THAT(log, testing::ElementsAre("third pre", "first pre", "forward", "first post", "third post"));
}

TEST_F(HookRegistryTest, TakesAFreedNameAgainAsTheOutermost) {
  add("first");
  add("second");
  module.hooks().remove("first");
  add("first");
  EXPECT_THAT(module.hooks().names(), testing::ElementsAre("second", "first"));
}

TEST_F(HookRegistryTest, DescribesItselfInOrderOfRegistration) {
  EXPECT_EQ(module.hooks().describe(), "");
  add("cp_input---blocks.0");
  add_replacing("cp_input---blocks.*");
  EXPECT_EQ(module.hooks().describe(),
            "(0) cp_input---blocks.0 - LoggingHook\n(1) cp_input---blocks.* - LoggingHook\n");
}

TEST_F(HookRegistryTest, FindsAndResetsHooks) {
  EXPECT_EQ(module.hooks().find("first"), nullptr);
  EXPECT_TRUE(module.hooks().empty());
  add("first");
  add("second");
  EXPECT_EQ(module.hooks().find("first")->class_name(), "LoggingHook");
  module.hooks().reset();
  EXPECT_THAT(log, testing::ElementsAre("first reset", "second reset"));
}

TEST(Module, RemovesAHookBelowItselfOnlyWhenAsked) {
  Log log;
  LoggingModule root(log, 2);
  root.for_each_module(
      [&](Module& module) { module.hooks().register_hook("h", std::make_unique<LoggingHook>(log, module.path())); });
  root.remove_hook("h", false);
  EXPECT_FALSE(root.has_hooks());
  EXPECT_TRUE(root.find_module("child")->has_hooks());
  root.remove_hook("h", true);
  root.for_each_module([](Module& module) { EXPECT_FALSE(module.has_hooks()) << module.path(); });
  root.remove_hook("h", true);
}

// A hook changes what forward sees and what the caller gets.
class AddingHook final : public Hook {
 public:
  std::string_view class_name() const override { return "AddingHook"; }
  void pre_forward(Module&, Arguments& arguments) override { arguments.set("x", std::int64_t{1}); }
  void post_forward(Module&, Outputs& outputs) override { outputs = Outputs(std::vector<Tensor>(2)); }
};

TEST_F(HookRegistryTest, PassesChangedArgumentsAndOutputsOn) {
  module.hooks().register_hook("adding", std::make_unique<AddingHook>());
  const Outputs outputs = module.call({});
  EXPECT_TRUE(outputs.is_list);
  EXPECT_EQ(outputs.tensors.size(), 2U);
}

}  // namespace
}  // namespace shardproof::test
