#include "app/run_trace.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/build_info.h"
#include "app/output_paths.h"
#include "core/collectives.h"
#include "core/error.h"
#include "core/file.h"

namespace shardproof {

bool is_recorded(const Options& options) { return options.trace || options.steps; }

std::unique_ptr<OutputTarget> trace_target(const Options& options) {
  return options.trace && writes_outputs(options) ? std::make_unique<OutputTarget>("--trace", *options.trace) : nullptr;
}

void write_trace_file(const RunTrace& trace, const Options& options, OutputTarget& target, std::size_t most_bytes) {
  const std::string text = chrome_text(trace);
  const int steps = options.steps.value_or(1);
  SHARDPROOF_CHECK(text.size() <= most_bytes, file_error,
                   "--trace: '{}' would have {} bytes, more than the {} of which `trace` reads a file; expected {}",
                   printable(*options.trace), text.size(), most_bytes,
                   steps > 1 ? fmt::format("fewer --steps than {}", steps) : "a smaller model, or fewer ranks");
  target.write(text);
}

namespace {

// What `steps` steps of so many bytes come to, if that is too much.
std::optional<std::string> problem_of_size(const Options& options, std::int64_t step_bytes, std::int64_t most,
                                           const std::string& what, std::string_view why) {
  const std::int64_t steps = options.steps.value_or(1), fitting = most / std::max<std::int64_t>(step_bytes, 1);
  if (steps <= fitting) return std::nullopt;
  if (fitting == 0) {
    return fmt::format(
        "{}: one step alone would take about {} bytes in {}, more than {} {}; expected a smaller model, "
        "or fewer ranks",
        options.trace ? "--trace" : "--steps", step_bytes, what, most, why);
  }
  return fmt::format("--steps {}: they would take about {} bytes in {}, more than {} {}; expected at most {} steps",
                     steps, steps * step_bytes, what, most, why, fitting);
}

}  // namespace

std::optional<std::string> recording_problem(Communicator& world, const OperationRecorder& recorder,
                                             const Options& options, const RecordLimits& limits) {
  const RankTrace first = trace_of(recorder, world.rank());
  std::array<std::int64_t, 2> own{
      options.trace ? chrome_step_bytes(first, options.steps.value_or(1)) : 0,
      static_cast<std::int64_t>(first.events.size() * sizeof(TraceEvent)),
  };
  if (options.cupti) {  // what devices did is known at the end only: no less than a piece of work for each operation
    constexpr std::int64_t kWorkBytes = 450;
    const auto pieces = std::ranges::count_if(first.events, [](const TraceEvent& event) {
      return event.is(EventKind::computation) || event.is(EventKind::communication);
    });
    own[0] += pieces * kWorkBytes;
    own[1] += pieces * static_cast<std::int64_t>(sizeof(TraceDeviceWork));
  }
  const std::vector<std::int64_t> all = collectives::all_gather_numbers(world, own, "run: sizes of a step");
  std::int64_t text = 0, numbers = 0;
  for (std::size_t at = 0; at < all.size(); at += own.size()) {
    text += all[at];
    numbers += all[at + 1];
  }
  if (options.trace) {
    const std::string file = fmt::format("'{}' of --trace", printable(*options.trace));
    const auto problem = problem_of_size(options, text, limits.text, file, "of which `trace` reads a file");
    if (problem) return problem;
  }
  return problem_of_size(options, numbers, limits.numbers, "what is recorded", "that are kept");
}

std::string no_trace_text(const Options& options) {
  const std::string why = "no step of the run came to its end, or none was made";
  if (!options.trace) return fmt::format("--steps: there is no table: {}", why);
  return fmt::format("--trace: '{}' was not written: {}", printable(*options.trace), why);
}

void check_one_case(const Options& options, const std::vector<std::string>& cases) {
  if (!is_recorded(options) || cases.size() <= 1) return;
  std::string list;
  for (const std::string& name : cases) list += fmt::format("{}{}", list.empty() ? "" : ", ", printable(name));
  fail(ErrorKind::usage_error, "{}: what is recorded is one case, and there are {}; expected --case with one of {}",
       options.trace ? "--trace" : "--steps", cases.size(), list);
}

std::string_view backend_name(Backend backend) {
  switch (backend) {
    case Backend::mpi: return "mpi";
    case Backend::nccl: return "nccl";
    case Backend::cuda_threads: return "cuda-threads";
    case Backend::simulator: return "simulator";
  }
  return "?";
}

namespace {

std::string_view times_text(Backend backend) {
  switch (backend) {
    case Backend::mpi:
      return "of the host; MPI moves data while the rank posts or waits, so that what is complete is seen in wait";
    case Backend::nccl: return "of the host; device times of communication are those of CUDA events";
    case Backend::cuda_threads: return "of the host, which does not wait for the device: when work was handed to it";
    case Backend::simulator:
      return "of the host on which ranks take turns: a wait is as long as the others' turns, and no cluster's";
  }
  return "?";
}

}  // namespace

RunTrace empty_trace(const Options& options, const RunRequest& request, const std::string& case_name) {
  const ParallelConfig& config = request.configurations.list.front();
  const Backend backend = options.backend.value_or(Backend::simulator);
  RunTrace trace;
  trace.about = {
      {"model", request.subject.model().class_name},
      {"source", request.subject.source()},
      {"case", case_name},
      {"plan", options.plan},
      {"mode", mode_name(config)},
      {"mesh", effective_mesh(config).text()},
      {"rotate_method", config.context_parallel_config ? config.context_parallel_config->rotate_method : ""},
      {"gather", options.gather == GatherChoice::padded ? "padded" : "ragged"},
      {"dtype", std::string(options.dtype.name())},
      {"device", std::string(device_name(options))},
      {"backend", std::string(backend_name(backend))},
      {"seed", std::to_string(options.seed)},
      {"warmup", std::to_string(options.warmup.value_or(0))},
      {"steps", std::to_string(options.steps.value_or(1))},
      {"program_version", build_version()},
      {"times", std::string(times_text(backend))},
  };
  return trace;
}

std::vector<std::vector<std::int64_t>> gathered_on_rank_0(Communicator& world, Device& host,
                                                          std::vector<std::int64_t> own, std::int64_t most_at_once) {
  const auto count = static_cast<std::int64_t>(own.size());
  const std::vector<std::int64_t> counts =
      collectives::all_gather_numbers(world, std::span(&count, 1), "run: sizes of the traces");
  const bool receives = world.rank() == 0;
  std::vector<std::vector<std::int64_t>> gathered(receives ? counts.size() : 0);
  const std::int64_t longest = *std::ranges::max_element(counts);
  for (std::int64_t done = 0; done < longest; done += most_at_once) {
    std::vector<std::int64_t> sent(counts.size(), 0), received(counts.size(), 0);
    for (std::size_t rank = 1; receives && rank < counts.size(); ++rank) {
      received[rank] = std::clamp<std::int64_t>(counts[rank] - done, 0, most_at_once);
    }
    if (!receives) sent.front() = std::clamp<std::int64_t>(count - done, 0, most_at_once);
    const auto piece =
        std::span(own).subspan(static_cast<std::size_t>(std::min(done, count)), static_cast<std::size_t>(sent.front()));
    const Tensor rows = host.upload(std::as_bytes(piece), Shape{sent.front()}, kInt64);
    const Tensor all = collectives::all_to_all(world, rows, sent, received, "run: traces").wait();
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(all.numel()));
    host.download(std::as_writable_bytes(std::span(numbers)), all);
    auto at = numbers.begin();
    for (std::size_t rank = 1; rank < gathered.size(); ++rank) {
      gathered[rank].insert(gathered[rank].end(), at, at + received[rank]);
      at += received[rank];
    }
  }
  if (receives) gathered.front() = std::move(own);
  return gathered;
}

std::vector<std::string> gathered_texts(Communicator& world, const std::string& own) {
  const auto size = static_cast<std::int64_t>(own.size());
  const std::vector<std::int64_t> sizes =
      collectives::all_gather_numbers(world, std::span(&size, 1), "run: sizes of texts");
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  std::vector<std::int64_t> numbers(longest / sizeof(std::int64_t) + 1, 0);
  if (!own.empty()) std::memcpy(numbers.data(), own.data(), own.size());
  const std::vector<std::int64_t> all = collectives::all_gather_numbers(world, numbers, "run: texts");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(&all[rank * numbers.size()]),
                       static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

}  // namespace shardproof
