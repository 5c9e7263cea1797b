#include "app/request.h"

#include <algorithm>

#include <fmt/format.h>

#include "app/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "sim/device_mover.h"

namespace shardproof {

Report empty_report(const Options& options) {
  Report report;
  report.command = command_name(options.command);
  report.version = build_version();
  report.features = build_features();
  report.sources = options.sources;
  return report;
}

ExactOptions exact_options(const Options& options) {
  return {.gather = options.gather,
          .seed = options.seed,
          .schedule_seed = options.schedule_seed,
          .workers = options.workers};
}

std::string step_text(const std::string& case_name, const ParallelConfig& configuration) {
  return fmt::format("{}: {} {}", case_name, mode_name(configuration), effective_mesh(configuration).text());
}

std::unique_ptr<Device> given_device_of(const Options& options) {
  if (options.device != DeviceChoice::given) return nullptr;
  try {
    return make_torch_device(options.torch);
  } catch (const Error& error) {
    fail(error.kind(), "--device {}: {}", device_name(options), error.what());
  }
}

namespace {

// Simulated ranks move host memory themselves.
std::unique_ptr<Mover> mover_of(const Options& options, Device* device) {
  const bool is_on_gpu = device != nullptr && options.torch.place == TorchPlace::cuda;
  return is_on_gpu ? std::make_unique<DeviceMover>(*device) : nullptr;
}

Subject subject_of(const Options& options) {
  Subject subject = Subject::open(options.sources.front(), options.seed);
  if (!options.size) return subject;
  try {
    return Subject::of_size(subject.model(), subject.config(), *options.size, options.seed);
  } catch (const Error& error) {
    fail(error.kind(), "--size: '{}' is not possible: {}", printable(size_text(*options.size)), error.what());
  }
}

}  // namespace

RunRequest::RunRequest(const Options& options, Report& report)
    : given_device(given_device_of(options)),
      mover(mover_of(options, given_device.get())),
      subject(subject_of(options)) {
  RequestedPlan requested = requested_plan(options, subject);
  plans = std::move(requested.plans);
  cases = requested_cases(options, subject);
  configurations = requested_configurations(options, plans);
  report.model = subject.model().class_name;
  report.plan_name = options.plan;
  report.is_named = configurations.is_named;
  report.notes = std::move(requested.notes);
  if (subject.export_directory() == nullptr) {
    report.notes.push_back(fmt::format("weights and inputs are drawn, from seed {}", options.seed));
  }
}

VerifierOptions verifier_options(const RunRequest& request, const Options& options) {
  return {.dtype = options.dtype,
          .device = options.device,
          .given_device = request.given_device.get(),
          .gather = options.gather,
          .seed = options.seed,
          .schedule_seed = options.schedule_seed,
          .workers = options.workers,
          .mover = request.mover.get()};
}

std::function<ParallelPlans(const Json& config)> plans_of_sizes(const RunRequest& request, const Options& options) {
  return [&request, &options](const Json& config) {
    const ModelType& model = request.subject.model();
    if (options.plan == "default" || options.plan == "shipped") return plans_of_model(model, config, options.plan);
    ParallelPlans plans = request.plans;
    if (model.attention_heads) plans.attention_heads = model.attention_heads(config);
    return plans;
  };
}

void Refusals::add(const std::string& case_name, const std::string& reason) {
  const auto same = [&](const auto& known) { return known.first == reason; };
  auto found = std::find_if(by_reason_.begin(), by_reason_.end(), same);
  if (found == by_reason_.end()) found = by_reason_.insert(by_reason_.end(), {reason, ""});
  found->second += fmt::format("{}'{}'", found->second.empty() ? "" : ", ", printable(case_name));
}

std::vector<std::string> Refusals::messages(const ParallelConfig& configuration) const {
  std::vector<std::string> messages;
  const std::string mode = mode_name(configuration), mesh = effective_mesh(configuration).text();
  const std::string named = mode == "none" ? "the configuration " + mesh : mode + " with " + mesh;
  for (const auto& [reason, cases] : by_reason_) {
    messages.push_back(fmt::format("{} is refused in case {}: {}", named, cases, reason));
  }
  return messages;
}

}  // namespace shardproof
