// The command line as data. Every value is checked here, so that a wrong one is reported with its option, the value and
// what was expected before anything is read or run. The library that parses stays inside the source file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/mesh.h"
#include "models/model_size.h"
#include "real/launcher.h"
#include "real/torch_device.h"
#include "verify/verifier.h"

namespace shardproof {

enum class Command : std::uint8_t { oracle, verify, plan, run, trace, launch, zoo };
// What carries real ranks.
enum class Backend : std::uint8_t { mpi, nccl, cuda_threads, simulator };
// What the outputs of real ranks are compared with.
enum class CheckChoice : std::uint8_t {
  exact_order,  // the bits of simulated ranks, which add in the same order
  rounding,     // the dense run
  off,          // nothing
};
std::string_view command_name(Command command);
// What verify runs.
enum class Tier : std::uint8_t { exact, rounding, all };

struct Options {
  Command command = Command::verify;
  std::vector<std::string> sources;  // export directories or, but for oracle, a model's name; of launch, the program
  // What makes a configuration one that was asked for by name: any of the next six.
  std::optional<int> ring_degree = std::nullopt;
  std::optional<int> ulysses_degree = std::nullopt;
  std::optional<int> tp_degree = std::nullopt;
  std::optional<Mesh> mesh = std::nullopt;
  bool ulysses_anything = false;
  bool ring_anything = false;
  std::optional<std::string> rotate_method = std::nullopt;
  bool convert_to_fp32 = true;
  std::string plan = "default";  // or "shipped", or a file
  std::optional<std::string> case_name = std::nullopt;
  std::optional<ModelSize> size = std::nullopt;  // a small model like the source instead of the source
  bool shrink = false;                           // of verify and zoo
  Tier tier = Tier::all;
  DType dtype = kFloat64;
  DeviceChoice device = DeviceChoice::reference;
  TorchDeviceOptions torch = {};  // where DeviceChoice::given
  GatherChoice gather = GatherChoice::both;
  std::uint64_t seed = 0;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
  std::optional<Backend> backend = std::nullopt;  // of run, like the next two
  LaunchOptions launch = {};                      // address: of launch, too
  int timeout_seconds = 1800;
  std::optional<std::string> flight_record = std::nullopt;  // of --backend nccl
  CheckChoice check = CheckChoice::exact_order;             // of run, like the next three
  std::optional<int> warmup = std::nullopt;
  std::optional<int> steps = std::nullopt;
  std::optional<std::string> trace = std::nullopt;
  bool cupti = false;                           // records what GPUs do, too
  std::optional<int> processes = std::nullopt;  // of launch, like the next one
  int grace_seconds = 5;
  // Of zoo: show the faults; take all instead of a sample; take this one.
  bool list = false;
  bool full = false;
  std::optional<std::string> fault = std::nullopt;
  std::optional<std::string> write_fingerprints = std::nullopt;  // of zoo, instead of a score
  std::optional<std::string> json = std::nullopt;
  std::optional<std::string> junit = std::nullopt;  // not of plan, which compares nothing, nor of trace
  std::optional<std::string> html = std::nullopt;
  std::optional<std::string> write_plan = std::nullopt;  // of plan
};

// Either what to do, or a text (help, version) to print instead.
struct CommandLine {
  std::optional<Options> options = std::nullopt;
  std::string text;
};

// What an option takes; a test feeds every option what its kind must refuse.
enum class OptionKind : std::uint8_t {
  flag,
  integer,
  choice,
  mesh,
  case_name,
  size,
  plan,
  output_file,
  fault,
  address
};

struct DeclaredOption {
  Command command = Command::verify;
  std::string name;         // "--seed"
  std::string placeholder;  // of its value, as --help shows it; empty for a flag
  std::string description;
  OptionKind kind = OptionKind::flag;
};

// What --device calls the device that computes.
std::string_view device_name(const Options& options);

// Every option of every subcommand but --help.
std::vector<DeclaredOption> declared_options();

// usage_error naming the option, its value and what is expected.
CommandLine parse_command_line(int count, const char* const* words);

}  // namespace shardproof
