// Runs the property tests with a seed that is printed: every failure ends with the one line that replays it. The seed
// changes from run to run unless RC_PARAMS gives one.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

namespace {

std::string rapidcheck_parameters() {
  const char* given = std::getenv("RC_PARAMS");
  std::string parameters = given == nullptr ? "" : given;
  if (parameters.find("seed=") == std::string::npos && parameters.find("reproduce=") == std::string::npos) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto seed = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    parameters += (parameters.empty() ? "seed=" : " seed=") + std::to_string(seed);
  }
  if (parameters.find("max_success=") == std::string::npos) parameters += " max_success=500";
  return parameters;
}

class ReplayLine final : public testing::EmptyTestEventListener {
 public:
  ReplayLine(std::string parameters, std::string program)
      : parameters_(std::move(parameters)), program_(std::move(program)) {}
  void OnTestProgramStart(const testing::UnitTest&) override { std::cerr << "RC_PARAMS=\"" << parameters_ << "\"\n"; }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::cerr << "replay: RC_PARAMS=\"" << parameters_ << "\" " << program_
              << " --gtest_filter=" << test.test_suite_name() << "." << test.name() << "\n";
  }

 private:
  std::string parameters_;
  std::string program_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string parameters = rapidcheck_parameters();
  setenv("RC_PARAMS", parameters.c_str(), 1);
  const std::string program = argc > 0 ? argv[0] : "property_test";
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new ReplayLine(parameters, program));
  return RUN_ALL_TESTS();
}
