// What verify, plan and run have in common: a subject with its plan, cases and configurations, and the words for a
// configuration that was asked for by name and is refused.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/configurations.h"
#include "app/options.h"
#include "reports/result.h"
#include "verify/exact_verifier.h"
#include "verify/subject.h"
#include "verify/verifier.h"

namespace shardproof {

// A report with the program, the command and its sources.
Report empty_report(const Options& options);
ExactOptions exact_options(const Options& options);
// "base: ring ring=2".
std::string step_text(const std::string& case_name, const ParallelConfig& configuration);

// The device of LibTorch that --device names; none for the other devices. Throws what is wrong, naming the option.
std::unique_ptr<Device> given_device_of(const Options& options);

// Opens everything that the options name and notes it in the report. Throws what is wrong with them.
struct RunRequest {
  RunRequest(const Options& options, Report& report);

  // Of --device torch and cuda, else none. They outlive the subject, which keeps weights for its devices.
  std::unique_ptr<Device> given_device;
  std::unique_ptr<Mover> mover;
  Subject subject;
  ParallelPlans plans;
  std::vector<std::string> cases;
  RequestedConfigurations configurations;
};

VerifierOptions verifier_options(const RunRequest& request, const Options& options);

// The plans in effect for a model like the subject's with another configuration: those of a name are made anew, those
// of a file taken as they are. The request and the options must outlive it.
std::function<ParallelPlans(const Json& config)> plans_of_sizes(const RunRequest& request, const Options& options);

// Refusals of the one configuration that was asked for, by reason, as messages for standard error.
class Refusals {
 public:
  void add(const std::string& case_name, const std::string& reason);
  std::vector<std::string> messages(const ParallelConfig& configuration) const;

 private:
  std::vector<std::pair<std::string, std::string>> by_reason_;  // reason, cases
};

}  // namespace shardproof
