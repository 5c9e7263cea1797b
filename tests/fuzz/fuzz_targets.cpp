#include "tests/fuzz/fuzz_targets.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "core/error.h"
#include "core/host_memory.h"
#include "core/safetensors.h"
#include "models/export_directory.h"
#include "models/model_type.h"
#include "models/state.h"
#include "parallel/plan_json.h"
#include "reports/chrome_trace.h"
#include "reports/flight_record.h"
#include "reports/flight_record_diff.h"
#include "reports/profile.h"
#include "reports/trace_diff.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(SHARDPROOF_SOURCE_DIR) / "tests/data";

// An export directory in which everything but the mutated file is sound.
void prepare_export(const fs::path& folder) {
  const fs::path sound = kData / "goldens/flux/uneven";
  for (const char* name : {"config.json", "base.json", "base.inputs.safetensors", "weights.safetensors"}) {
    fs::copy_file(sound / name, folder / name, fs::copy_options::overwrite_existing);
  }
}

void read_case(const fs::path& folder) {
  HostDevice host;
  const ExportDirectory directory(folder);
  for (const std::string& name : directory.case_names()) {
    directory.load_case(name, host);
    directory.trace_entries(name);
  }
}

void read_model(const fs::path& folder) {
  HostDevice host;
  const ExportDirectory directory(folder);
  const ModelContext context{&host, kFloat32, TablePrecision::float32};
  const std::unique_ptr<Module> declared = directory.model().create(directory.config(), context);
  load_state(*declared, directory.weights(), context);
}

void read_all_tensors(const fs::path& folder) {
  HostDevice host;
  const SafetensorsFile file(folder / "mutated.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    file.tensor(entry.name, host);
    file.tensor_view(entry.name, host);
  }
}

void read_plan(const fs::path& folder) {
  const PlanFile plan = read_plan_file(folder / "plan.json");
  const ModelType& flux = find_model_type("flux");
  const std::unique_ptr<Module> tree = flux.create(flux.hostile_config(), {});
  if (plan.cp) plan_problems(*tree, *plan.cp);
  if (plan_from_json(plan_to_json(plan)) != plan)
    fail(ErrorKind::internal_error, "a plan changed on its way through JSON");
}

void read_index(const fs::path& folder) {
  HostDevice host;
  const WeightFiles files(folder);
  for (const std::string& name : files.names()) files.tensor(name, host);
}

// Whatever the file says must be possible to add up, to write again and to compare with itself.
void read_trace(const fs::path& folder) {
  const RunTrace trace = trace_from_json(read_trace_json(folder / "trace.json"));
  (void)profile_of(trace);
  (void)chrome_text(trace);
  if (!compare_traces(trace, trace).divergences.empty()) fail(ErrorKind::internal_error, "a trace differs from itself");
}

void read_flight_record(const fs::path& folder) {
  const FlightRecord record = flight_record_from_json(read_trace_json(folder / "record.0"));
  for (const TraceEvent& event : record.calls.events) (void)signature(record.calls, event);
  FlightRecord neighbour = record;
  neighbour.calls.rank = ++neighbour.rank;
  (void)compare_flight_records(std::vector{record, neighbour});
}

// The message without the paths of files in the folder, which are quoted as keys are.
std::string without_paths(std::string message, const std::string& folder) {
  for (std::size_t at = message.find(folder); at != std::string::npos; at = message.find(folder, at)) {
    const std::size_t end = message.find_first_of("': ,;", at + folder.size());
    message.erase(at, end == std::string::npos ? end : end - at);
    const bool is_quoted = at > 0 && message[at - 1] == '\'' && at < message.size() && message[at] == '\'';
    if (is_quoted) message.erase(at - 1, 2);
  }
  return message;
}

// A key in quotes, the top level, or a number of a byte or of bytes before or behind that word.
bool names_a_place(const std::string& message) {
  const std::size_t quote = message.find('\'');
  if (quote != std::string::npos && message.find('\'', quote + 1) != std::string::npos) return true;
  if (message.find("the top level") != std::string::npos) return true;
  const auto is_digit = [&](std::size_t at) {
    return at < message.size() && std::isdigit(static_cast<unsigned char>(message[at])) != 0;
  };
  for (std::size_t at = message.find(" byte"); at != std::string::npos; at = message.find(" byte", at + 1)) {
    const std::size_t next = message.find(' ', at + 1);
    if ((at > 0 && is_digit(at - 1)) || (next != std::string::npos && is_digit(next + 1))) return true;
  }
  return false;
}

}  // namespace

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::map<std::string, FuzzTarget>& fuzz_targets() {
  static const std::map<std::string, FuzzTarget> kTargets{
      {"safetensors",
       {{kData / "fuzz/small.safetensors", kData / "attention/uneven.safetensors"},
        "mutated.safetensors",
        read_all_tensors}},
      {"config", {{kData / "goldens/flux/uneven/config.json"}, "config.json", read_model}},
      {"case",
       {{kData / "goldens/flux/uneven/base.json", kData / "goldens/flux/tiny/controlnet.json"},
        "base.json",
        read_case}},
      {"plan", {{kData / "fuzz/flux_plan.json", kData / "fuzz/list_plan.json"}, "plan.json", read_plan}},
      {"trace", {{kData / "fuzz/trace.json"}, "trace.json", read_trace}},
      {"flight_record", {{kData / "fuzz/flight_record.json"}, "record.0", read_flight_record}},
      {"index",
       {{kData / "fuzz/sharded/weights.safetensors.index.json"}, "weights.safetensors.index.json", read_index}},
  };
  return kTargets;
}

fs::path prepared_folder(const std::string& target_name, std::string_view suffix) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("shardproof_fuzz_{}_{}", target_name, suffix);
  fs::remove_all(folder);
  fs::create_directories(folder);
  if (target_name == "config" || target_name == "case") prepare_export(folder);
  // Of the weights beside a case only the header is read: a small one saves most of the time.
  if (target_name == "case") {
    fs::copy_file(kData / "fuzz/small.safetensors", folder / "weights.safetensors",
                  fs::copy_options::overwrite_existing);
  }
  if (target_name == "index") fs::copy(kData / "fuzz/sharded", folder);
  return folder;
}

std::string finding_about_message(std::string_view message, const fs::path& folder) {
  if (message.find(folder.string()) == std::string_view::npos) return fmt::format("names no file: {}", message);
  const std::string rest = without_paths(std::string(message), folder.string());
  return names_a_place(rest) ? "" : fmt::format("names no key and no offset: {}", message);
}

std::string finding_about(const FuzzTarget& target, const fs::path& folder) {
  try {
    target.read(folder);
    return "";
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal_error) return fmt::format("an internal error: {}", error.what());
    return finding_about_message(error.what(), folder);
  } catch (const std::exception& error) {
    return fmt::format("an exception of another type: {}", error.what());
  }
}

}  // namespace shardproof
