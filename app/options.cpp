#include "app/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <span>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "app/build_info.h"
#include "app/output_paths.h"
#include "core/error.h"
#include "core/file.h"
#include "real/nccl_communicator.h"
#include "sim/simulation.h"

namespace shardproof {
namespace {

constexpr std::int64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();

std::int64_t integer_from(const std::string& option, const std::string& text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_integer = status == std::errc{} && end == text.data() + text.size();
  SHARDPROOF_CHECK(is_integer && value >= min && value <= max, usage_error,
                   "{}: '{}' is not possible; expected an integer from {} to {}", option, printable(text), min, max);
  return value;
}

template <class Choice>
struct NamedChoice {
  const char* name;
  Choice choice;
};

template <class Choice>
Choice choice_from(const std::string& option, const std::string& text,
                   const std::vector<NamedChoice<Choice>>& choices) {
  std::string names;
  for (const NamedChoice<Choice>& known : choices) {
    if (text == known.name) return known.choice;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  fail(ErrorKind::usage_error, "{}: '{}' is not known; expected one of {}", option, printable(text), names);
}

Mesh mesh_from(const std::string& option, const std::string& text) {
  try {
    return Mesh::parse(text);
  } catch (const Error& error) {
    fail(ErrorKind::usage_error, "{}: '{}' is not possible, expected NAME=SIZE,..: {}", option, printable(text),
         printable(error.what(), 1000));
  }
}

ModelSize size_from(const std::string& option, const std::string& text) {
  try {
    return parse_model_size(text);
  } catch (const Error& error) {
    fail(ErrorKind::usage_error, "{}: '{}' is not possible: {}", option, printable(text),
         printable(error.what(), 1000));
  }
}

// Reads the text of an option into the options.
using Reader = std::function<void(const std::string& option, const std::string& text)>;

// Declares the options of one subcommand, and reads their texts once all are known.
class Subcommand {
 public:
  Subcommand(CLI::App& program, Command command, const std::string& description) : command_(command) {
    app_ = program.add_subcommand(std::string(command_name(command)), description);
  }

  void sources(const std::string& name, const std::string& description, std::size_t most) {
    const auto most_words = static_cast<int>(std::min<std::size_t>(most, CLI::detail::expected_max_vector_size));
    app_->add_option(name, sources_, description)->required()->expected(1, most_words);
    source_name_ = name;
    source_description_ = description;
    most_sources_ = most;
  }
  void value(const std::string& name, OptionKind kind, const std::string& placeholder, const std::string& description,
             Reader reader, const std::string& short_name = {}) {
    CLI::Option* const option = app_->add_option_function<std::string>(
                                        short_name.empty() ? name : fmt::format("{},{}", short_name, name),
                                        [](const std::string&) {}, description)
                                    ->type_name(placeholder);
    entries_.push_back({option, {command_, name, placeholder, description, kind}, std::move(reader), short_name});
  }
  void flag(const std::string& name, const std::string& description, std::function<void()> set) {
    CLI::Option* const option = app_->add_flag(name, description)->disable_flag_override();
    entries_.push_back({option,
                        {command_, name, "", description, OptionKind::flag},
                        [set = std::move(set)](const std::string&, const std::string&) { set(); },
                        {}});
  }

  bool is_named(std::string_view name) const { return command_name(command_) == name; }
  // What stands behind the subcommand. The parser's own words would not name the value or what is expected.
  void check(std::span<const char* const> words) const {
    WordsGiven given;
    bool only_sources = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string_view word = words[i];
      if (only_sources || !word.starts_with('-') || word == "-") {
        given.sources.emplace_back(word);
      } else if (word == "--") {
        only_sources = true;
      } else if (word == "--help" || word == "-h") {
        return;
      } else {
        check_option(words, i, given);
      }
    }
    check_sources(given.sources);
  }
  bool parsed() const { return app_->parsed(); }
  void read(Options& options) const {
    options.command = command_;
    options.sources = sources_;
    for (const Entry& entry : entries_) {
      if (entry.option->count() > 0) entry.reader(entry.declared.name, entry.option->results().front());
    }
  }
  void append_declared(std::vector<DeclaredOption>& declared) const {
    for (const Entry& entry : entries_) declared.push_back(entry.declared);
  }

 private:
  struct Entry {
    CLI::Option* option = nullptr;
    DeclaredOption declared;
    Reader reader;
    std::string short_name;  // "-n", or nothing
  };
  struct WordsGiven {
    std::vector<std::string> sources;
    std::map<std::string, std::string> options;  // their values by their names
  };

  // The option at words[i]; moves i to the last word that belongs to it.
  void check_option(std::span<const char* const> words, std::size_t& i, WordsGiven& given) const {
    const std::string word = words[i];
    const std::size_t equals = word.find('=');
    const std::string given_name = word.substr(0, equals);
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& known) {
      return known.declared.name == given_name || (!known.short_name.empty() && known.short_name == given_name);
    });
    SHARDPROOF_CHECK(entry != entries_.end(), usage_error, "'{}' is no option of {}; shardproof {} --help lists them",
                     printable(given_name), command_name(command_), command_name(command_));
    const std::string& name = entry->declared.name;
    const bool is_flag = entry->declared.kind == OptionKind::flag;
    SHARDPROOF_CHECK(!is_flag || equals == std::string::npos, usage_error,
                     "{}: it takes no value, but '{}' was given; expected {} alone", name,
                     printable(word.substr(std::min(equals, word.size() - 1) + 1)), name);
    std::string value;
    if (!is_flag && equals != std::string::npos) {
      value = word.substr(equals + 1);
      SHARDPROOF_CHECK(!value.empty(), usage_error, "{}: its value is missing behind '='; expected {}", name,
                       expectation(entry->declared));
    } else if (!is_flag) {
      value = value_behind(words, i, entry->declared);
      ++i;
    }
    const auto [first, is_new] = given.options.try_emplace(name, value);
    SHARDPROOF_CHECK(is_new || !is_flag, usage_error, "{}: given twice; expected once", name);
    SHARDPROOF_CHECK(is_new, usage_error, "{}: given twice, with '{}' and with '{}'; expected once", name,
                     printable(first->second), printable(value));
  }

  static std::string expectation(const DeclaredOption& option) {
    return fmt::format("{}, {}", option.placeholder, option.description);
  }

  // The parser would take the next word whatever it is.
  static std::string value_behind(std::span<const char* const> words, std::size_t i, const DeclaredOption& option) {
    SHARDPROOF_CHECK(i + 1 < words.size(), usage_error, "{}: its value is missing at the end of the line; expected {}",
                     option.name, expectation(option));
    const std::string value = words[i + 1];
    SHARDPROOF_CHECK(!value.starts_with("--"), usage_error,
                     "{}: its value is missing before '{}'; expected {} (a file of that name is ./{})", option.name,
                     printable(value), expectation(option), printable(value));
    return value;
  }

  void check_sources(const std::vector<std::string>& sources) const {
    SHARDPROOF_CHECK(most_sources_ > 0 || sources.empty(), usage_error,
                     "{}: '{}' is one word too many; expected options only", command_name(command_),
                     printable(sources.empty() ? "" : sources.front()));
    if (most_sources_ == 0) return;
    SHARDPROOF_CHECK(!sources.empty(), usage_error, "{}: {} is missing; expected {}", command_name(command_),
                     source_name_, source_description_);
    SHARDPROOF_CHECK(sources.size() <= most_sources_, usage_error,
                     "{}: '{}' is one {} too many behind '{}'; expected {}", command_name(command_),
                     printable(sources.back()), source_name_, printable(sources.front()), source_description_);
  }

 private:
  Command command_;
  CLI::App* app_ = nullptr;
  std::vector<std::string> sources_;
  std::string source_name_;
  std::string source_description_;
  std::size_t most_sources_ = 0;
  std::vector<Entry> entries_;
};

Reader integer_into(std::optional<int>& target, int max) {
  return [&target, max](const std::string& option, const std::string& text) {
    target = static_cast<int>(integer_from(option, text, 1, max));
  };
}

Reader seed_into(std::uint64_t& target) {
  return [&target](const std::string& option, const std::string& text) {
    target = static_cast<std::uint64_t>(integer_from(option, text, 0, kMaxSeed));
  };
}

void add_json(Subcommand& command, Options& options) {
  command.value("--json", OptionKind::output_file, "FILE", "also write the result as JSON",
                [&](const std::string&, const std::string& text) { options.json = text; });
}

void add_junit(Subcommand& command, Options& options) {
  command.value("--junit", OptionKind::output_file, "FILE", "also write the verdicts as JUnit XML, for servers of CI",
                [&](const std::string&, const std::string& text) { options.junit = text; });
}

void add_html(Subcommand& command, Options& options) {
  command.value("--html", OptionKind::output_file, "FILE", "also write the result as a page for a browser, in one file",
                [&](const std::string&, const std::string& text) { options.html = text; });
}

void add_write_plan(Subcommand& command, Options& options) {
  command.value("--write-plan", OptionKind::output_file, "FILE", "also write the plan, as a plan file",
                [&](const std::string&, const std::string& text) { options.write_plan = text; });
}

void add_shrink(Subcommand& command, Options& options) {
  command.flag("--shrink", "after a difference, also find the smallest configuration that shows it",
               [&] { options.shrink = true; });
}

void add_configuration(Subcommand& command, Options& options) {
  command.value("--ring-degree", OptionKind::integer, "R", "ranks of the ring",
                integer_into(options.ring_degree, kMaxSimulatedRanks));
  command.value("--ulysses-degree", OptionKind::integer, "U", "ranks that exchange heads for tokens",
                integer_into(options.ulysses_degree, kMaxSimulatedRanks));
  command.flag("--ulysses-anything", "Ulysses for lengths and heads that do not divide",
               [&] { options.ulysses_anything = true; });
  command.flag("--ring-anything", "Ring for lengths that do not divide", [&] { options.ring_anything = true; });
  command.value("--rotate-method", OptionKind::choice, "allgather|alltoall",
                "how a ring moves its chunks (default allgather; both if no configuration is named)",
                [&](const std::string& option, const std::string& text) {
                  options.rotate_method =
                      choice_from<const char*>(option, text, {{"allgather", "allgather"}, {"alltoall", "alltoall"}});
                });
  command.flag("--no-convert-to-fp32", "merge partial results in the type of the queries",
               [&] { options.convert_to_fp32 = false; });
  command.value("--tp-degree", OptionKind::integer, "T", "ranks that share each layer's weights (tensor parallelism)",
                integer_into(options.tp_degree, kMaxSimulatedRanks));
  command.value("--mesh", OptionKind::mesh, "NAME=SIZE,...",
                "a mesh with dimensions ring, ulysses, tp; others are replicas",
                [&](const std::string& option, const std::string& text) { options.mesh = mesh_from(option, text); });
}

enum class DeviceWish : std::uint8_t { by_dtype, reference, cpu, torch, cuda };

bool is_of_torch(DeviceWish wish) { return wish == DeviceWish::torch || wish == DeviceWish::cuda; }

DeviceChoice device_for(DeviceWish wish, DType dtype) {
  if (is_of_torch(wish)) return DeviceChoice::given;
  if (wish == DeviceWish::by_dtype) return dtype == kFloat64 ? DeviceChoice::reference : DeviceChoice::cpu;
  if (wish == DeviceWish::cpu) return DeviceChoice::cpu;
  SHARDPROOF_CHECK(dtype.size() != 2, usage_error,
                   "--device reference with --dtype {}: the reference device computes in float64 and float32 only; "
                   "expected --device cpu",
                   dtype.name());
  return DeviceChoice::reference;
}

void add_device(Subcommand& command, DeviceWish& device, const std::string& placeholder, const std::string& description,
                std::initializer_list<NamedChoice<DeviceWish>> choices) {
  command.value("--device", OptionKind::choice, placeholder, description,
                [&device, known = std::vector(choices)](const std::string& option, const std::string& text) {
                  device = choice_from<DeviceWish>(option, text, known);
                  SHARDPROOF_CHECK(!is_of_torch(device) || torch_is_built(), usage_error,
                                   "{}: '{}' needs LibTorch, which is not part of this build; run "
                                   "tools/setup_python.sh and configure again, or take reference or cpu",
                                   option, text);
                });
}

void add_run(Subcommand& command, Options& options, DeviceWish& device) {
  command.value("--plan", OptionKind::plan, "shipped|default|FILE",
                "the plan: as diffusers ships it, corrected (default), or a file",
                [&](const std::string&, const std::string& text) { options.plan = text; });
  command.value("--case", OptionKind::case_name, "NAME", "one case (default: all)",
                [&](const std::string&, const std::string& text) { options.case_name = text; });
  command.value("--size", OptionKind::size, "NAME=N,...",
                "a small model like the source, with one case: text, image, heads, layers, batch, with=FEATURE+..",
                [&](const std::string& option, const std::string& text) { options.size = size_from(option, text); });
  command.value("--dtype", OptionKind::choice, "TYPE", "float64 (default), float32, bfloat16 or float16",
                [&](const std::string& option, const std::string& text) {
                  options.dtype = choice_from<DType>(
                      option, text,
                      {{"float64", kFloat64}, {"float32", kFloat32}, {"bfloat16", kBFloat16}, {"float16", kFloat16}});
                });
  command.value("--tier", OptionKind::choice, "exact|rounding|all",
                "what to verify: in exact arithmetic, in floating point, or both (default)",
                [&](const std::string& option, const std::string& text) {
                  options.tier = choice_from<Tier>(
                      option, text, {{"exact", Tier::exact}, {"rounding", Tier::rounding}, {"all", Tier::all}});
                });
  add_device(command, device, "reference|cpu|torch|cuda",
             "what computes (default: reference for float64, cpu otherwise; torch is LibTorch, cuda LibTorch on a GPU)",
             {{"reference", DeviceWish::reference},
              {"cpu", DeviceWish::cpu},
              {"torch", DeviceWish::torch},
              {"cuda", DeviceWish::cuda}});
  command.value("--gather", OptionKind::choice, "ragged|padded",
                "form of uneven gathers (default: both, which must give the same bits)",
                [&](const std::string& option, const std::string& text) {
                  options.gather = choice_from<GatherChoice>(
                      option, text, {{"ragged", GatherChoice::ragged}, {"padded", GatherChoice::padded}});
                });
  command.value("--seed", OptionKind::integer, "N", "of drawn weights and inputs, and of replicas' inputs (default 0)",
                seed_into(options.seed));
  command.value("--schedule-seed", OptionKind::integer, "N", "of the order in which messages arrive (default 0)",
                seed_into(options.schedule_seed));
  command.value("--workers", OptionKind::integer, "N", "threads that run simulated ranks, 1 to 256 (default 1)",
                [&](const std::string& option, const std::string& text) {
                  options.workers = static_cast<int>(integer_from(option, text, 1, kMaxSimulationWorkers));
                });
}

void add_backend(Subcommand& command, Options& options) {
  command.value("--backend", OptionKind::choice, "mpi|nccl|cuda-threads|simulator",
                "what carries the ranks: MPI between processes, NCCL between processes with a GPU each, threads that "
                "share a GPU, "
                "or the simulator",
                [&](const std::string& option, const std::string& text) {
                  SHARDPROOF_CHECK(
                      text != "nccl" || nccl_is_built(), usage_error,
                      "{}: '{}' is not part of this build; run tools/setup_nccl.sh and configure again, or take mpi",
                      option, text);
                  options.backend = choice_from<Backend>(option, text,
                                                         {{"mpi", Backend::mpi},
                                                          {"nccl", Backend::nccl},
                                                          {"cuda-threads", Backend::cuda_threads},
                                                          {"simulator", Backend::simulator}});
                });
}

void add_steps(Subcommand& command, Options& options) {
  constexpr int kMaxSteps = 1'000'000;
  command.value("--check", OptionKind::choice, "exact-order|rounding|off",
                "what each rank's output is compared with: the bits of its simulated twin (default), the dense run "
                "within rounding, or nothing",
                [&](const std::string& option, const std::string& text) {
                  options.check = choice_from<CheckChoice>(option, text,
                                                           {{"exact-order", CheckChoice::exact_order},
                                                            {"rounding", CheckChoice::rounding},
                                                            {"off", CheckChoice::off}});
                });
  command.value("--warmup", OptionKind::integer, "N", "calls of the model before the first step (default 0)",
                [&](const std::string& option, const std::string& text) {
                  options.warmup = static_cast<int>(integer_from(option, text, 0, kMaxSteps));
                });
  command.value("--steps", OptionKind::integer, "N",
                "calls of the model, each a step; a table says where their time went (default 1, without a table)",
                integer_into(options.steps, kMaxSteps));
  command.value(
      "--trace", OptionKind::output_file, "FILE",
      "write what every rank did and when, for Perfetto, chrome://tracing and shardproof trace; with the table",
      [&](const std::string&, const std::string& text) { options.trace = text; });
  command.flag("--cupti", "record what the GPUs do, too, kernel by kernel; the table is then of their time",
               [&] { options.cupti = true; });
}

void add_flight_record(Subcommand& command, Options& options) {
  command.value("--flight-record", OptionKind::output_file, "FILE",
                "where rank R writes what it posted, as FILE.R, if something does not end in time (backend nccl)",
                [&](const std::string& option, const std::string& text) {
                  const std::filesystem::path path(text);
                  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
                  std::error_code error;
                  SHARDPROOF_CHECK(path.has_filename() && std::filesystem::is_directory(folder, error), usage_error,
                                   "{}: '{}' cannot be written; expected a file in a folder that exists", option,
                                   printable(text));
                  options.flight_record = text;
                });
}

Reader number_into(std::optional<int>& target, int max) {
  return [&target, max](const std::string& option, const std::string& text) {
    target = static_cast<int>(integer_from(option, text, 0, max));
  };
}

void add_address(Subcommand& command, Options& options, const std::string& description) {
  command.value("--address", OptionKind::address, "HOST:PORT", description,
                [&](const std::string& option, const std::string& text) {
                  (void)address_from(option, text);
                  options.launch.address = text;
                });
}

void add_meeting(Subcommand& command, Options& options) {
  constexpr int kMaxRank = 1 << 20, kMaxSeconds = 1'000'000;
  command.value("--rank", OptionKind::integer, "R",
                "this rank (default: what the launcher says in the environment, here and below)",
                number_into(options.launch.rank, kMaxRank));
  command.value("--world-size", OptionKind::integer, "N", "ranks in all",
                integer_into(options.launch.world_size, kMaxRank));
  command.value("--local-rank", OptionKind::integer, "R", "this rank on its machine",
                number_into(options.launch.local_rank, kMaxRank));
  add_address(command, options, "where the ranks meet rank 0; not needed under mpirun");
  command.value("--timeout", OptionKind::integer, "SECONDS",
                "for how long a rank waits for another before it gives up (default 1800)",
                [&](const std::string& option, const std::string& text) {
                  options.timeout_seconds = static_cast<int>(integer_from(option, text, 1, kMaxSeconds));
                });
}

void add_launch(Subcommand& command, Options& options) {
  constexpr int kMaxProcesses = 1024, kMaxSeconds = 1'000'000;
  command.value("--processes", OptionKind::integer, "N", "how many ranks to start, 1 to 1024",
                integer_into(options.processes, kMaxProcesses), "-n");
  add_address(command, options, "where the ranks meet rank 0 (default: a free port of 127.0.0.1)");
  command.value("--grace", OptionKind::integer, "SECONDS",
                "between asking the ranks to end and killing them (default 5)",
                [&](const std::string& option, const std::string& text) {
                  options.grace_seconds = static_cast<int>(integer_from(option, text, 0, kMaxSeconds));
                });
}

void add_zoo(Subcommand& command, Options& options) {
  command.flag("--list", "only show the faults, and what each models", [&] { options.list = true; });
  command.value("--only", OptionKind::fault, "NAME", "one fault, by its name (default: a sample)",
                [&](const std::string&, const std::string& text) { options.fault = text; });
  command.flag("--shrink", "also find the smallest configuration that shows each fault",
               [&] { options.shrink = true; });
  command.flag("--full", "all faults instead of a sample", [&] { options.full = true; });
  command.value("--seed", OptionKind::integer, "N", "of the sample, of weights and of inputs (default 0)",
                seed_into(options.seed));
  command.value("--write-fingerprints", OptionKind::output_file, "FILE",
                "write the fingerprints of all faults, by which verify recognises them, instead of a score",
                [&](const std::string&, const std::string& text) { options.write_fingerprints = text; });
}

void check_cupti(const Options& options) {
  if (!options.cupti) return;
  SHARDPROOF_CHECK(options.backend == Backend::nccl || options.backend == Backend::cuda_threads, usage_error,
                   "--cupti: it records what GPUs do; expected --backend nccl or cuda-threads");
  SHARDPROOF_CHECK(options.trace || options.steps, usage_error,
                   "--cupti: nothing is recorded; expected --trace FILE or --steps N beside it");
}

void check_zoo(const Options& options) {
  SHARDPROOF_CHECK(!options.full || !options.fault, usage_error,
                   "--only {} with --full: one fault or all of them; expected only one of these options",
                   printable(options.fault.value_or("")));
  const bool has_score =
      options.full || options.fault || options.shrink || options.json || options.junit || options.html;
  SHARDPROOF_CHECK(!options.list || !has_score, usage_error,
                   "--list: nothing is run; expected no --only, --full, --shrink, --json, --junit or --html beside it");
  SHARDPROOF_CHECK(
      !options.write_fingerprints || !(options.list || has_score), usage_error,
      "--write-fingerprints '{}': it takes all faults and keeps no score; expected no --list, --only, --full, "
      "--shrink, --json, --junit or --html beside it",
      printable(options.write_fingerprints.value_or("")));
}

constexpr const char* kSubcommands = "oracle, verify, plan, run, trace, launch or zoo (--help explains them)";

// The parser would only say that a subcommand is missing.
void check_subcommand(int count, const char* const* words) {
  SHARDPROOF_CHECK(count > 1, usage_error, "a subcommand is missing; expected {}", kSubcommands);
  const std::string first = words[1];
  constexpr std::array kCommands{Command::oracle, Command::verify, Command::plan, Command::run,
                                 Command::trace,  Command::launch, Command::zoo};
  const bool is_known =
      std::any_of(kCommands.begin(), kCommands.end(), [&](Command command) { return first == command_name(command); });
  SHARDPROOF_CHECK(is_known || first.starts_with('-'), usage_error, "'{}' is no subcommand; expected {}",
                   printable(first), kSubcommands);
}

// Options are read into the last two. A deque, since the parser keeps pointers into the elements.
std::deque<Subcommand> subcommands_of(CLI::App& program, Options& options, DeviceWish& device) {
  std::deque<Subcommand> commands;
  commands.emplace_back(program, Command::oracle, "our dense model against outputs exported from diffusers")
      .sources("EXPORT_DIR", "folders with config.json, weights and cases", std::numeric_limits<std::size_t>::max());
  add_device(commands.back(), device, "torch|cuda",
             "compute everything on LibTorch, or on a GPU with it (default: float64 on reference, float32 on cpu)",
             {{"torch", DeviceWish::torch}, {"cuda", DeviceWish::cuda}});
  add_json(commands.back(), options);
  add_junit(commands.back(), options);
  add_html(commands.back(), options);
  commands.emplace_back(program, Command::verify, "every simulated rank against the dense run");
  commands.emplace_back(program, Command::plan, "the resolved plan: module, argument, axis, sizes on every rank");
  commands.emplace_back(program, Command::run, "the same on real ranks: start it with mpirun, torchrun or launch");
  add_backend(commands.back(), options);
  add_flight_record(commands.back(), options);
  add_steps(commands.back(), options);
  add_meeting(commands.back(), options);
  for (std::size_t i = 1; i < commands.size(); ++i) {
    commands[i].sources("SOURCE", "one export directory, or a model's name (drawn weights and inputs)", 1);
    add_configuration(commands[i], options);
    add_run(commands[i], options, device);
    if (commands[i].is_named(command_name(Command::plan))) add_write_plan(commands[i], options);
    if (commands[i].is_named(command_name(Command::verify))) add_shrink(commands[i], options);
    add_json(commands[i], options);
    if (!commands[i].is_named(command_name(Command::plan))) add_junit(commands[i], options);
    add_html(commands[i], options);
  }
  commands.emplace_back(program, Command::trace, "traces and flight records: what differs, and the table of a trace")
      .sources("ACTION", "diff with two traces, or flight records and a trace; summary with one trace",
               std::numeric_limits<std::size_t>::max());
  add_json(commands.back(), options);
  commands.emplace_back(program, Command::launch, "starts a program as ranks of this machine")
      .sources("PROGRAM", "the program and its arguments, which stand behind two dashes",
               std::numeric_limits<std::size_t>::max());
  add_launch(commands.back(), options);
  commands.emplace_back(program, Command::zoo, "what verification catches: every fault of a zoo, switched on in turn");
  add_zoo(commands.back(), options);
  add_json(commands.back(), options);
  add_junit(commands.back(), options);
  add_html(commands.back(), options);
  return commands;
}

constexpr const char* kFooter =
    "Exit status: 0 everything that was run is verified; 1 a difference was found; 2 the request is wrong\n"
    "(bad file or option, refused by name, nothing verified, output that cannot be written); 3 internal error;\n"
    "4 a real peer failed or did not come in time. Of run without a check 0: it ran.\n"
    "Of trace diff 1: they differ.\n"
    "launch has the status of the rank that failed first.";

}  // namespace

std::string_view command_name(Command command) {
  switch (command) {
    case Command::oracle: return "oracle";
    case Command::verify: return "verify";
    case Command::plan: return "plan";
    case Command::run: return "run";
    case Command::trace: return "trace";
    case Command::launch: return "launch";
    case Command::zoo: return "zoo";
  }
  return "?";
}

std::string_view device_name(const Options& options) {
  switch (options.device) {
    case DeviceChoice::reference: return "reference";
    case DeviceChoice::cpu: return "cpu";
    case DeviceChoice::given: return options.torch.place == TorchPlace::cuda ? "cuda" : "torch";
  }
  return "?";
}

std::vector<DeclaredOption> declared_options() {
  CLI::App program;
  Options options;
  DeviceWish device = DeviceWish::by_dtype;
  std::vector<DeclaredOption> declared;
  for (const Subcommand& command : subcommands_of(program, options, device)) command.append_declared(declared);
  return declared;
}

CommandLine parse_command_line(int count, const char* const* words) {
  CLI::App program("Verifies that a diffusion transformer computes the same on many ranks as on one.", "shardproof");
  program.require_subcommand(1);
  program.footer(kFooter);
  program.set_version_flag("--version", version_text);

  Options options;
  DeviceWish device = DeviceWish::by_dtype;
  const std::deque<Subcommand> commands = subcommands_of(program, options, device);
  check_subcommand(count, words);
  const std::span all_words(words, static_cast<std::size_t>(count));
  for (const Subcommand& command : commands) {
    if (command.is_named(words[1])) command.check(all_words.subspan(2));
  }
  try {
    program.parse(count, words);
  } catch (const CLI::CallForHelp&) {
    return {.options = std::nullopt, .text = program.help()};
  } catch (const CLI::CallForVersion& version) {
    return {.options = std::nullopt, .text = version.what()};
  } catch (const CLI::ParseError& error) {
    SHARDPROOF_CHECK(
        error.get_exit_code() != static_cast<int>(CLI::ExitCodes::RequiredError) || !program.get_subcommands().empty(),
        usage_error, "a subcommand is missing; expected {}", kSubcommands);
    fail(ErrorKind::usage_error, "{}", printable(error.what(), 1000));
  }
  for (const Subcommand& command : commands) {
    if (command.parsed()) command.read(options);
  }
  options.device = device_for(device, options.dtype);
  options.torch.place = device == DeviceWish::cuda ? TorchPlace::cuda : TorchPlace::cpu;
  SHARDPROOF_CHECK(device != DeviceWish::cuda || options.backend != Backend::mpi, usage_error,
                   "--device cuda with --backend mpi: MPI moves host memory only; expected --backend nccl, or --device "
                   "torch");
  SHARDPROOF_CHECK(options.tier != Tier::exact || options.command == Command::verify, usage_error,
                   "--tier: 'exact' is possible with verify only; expected rounding or all");
  SHARDPROOF_CHECK(options.command != Command::run || options.backend, usage_error,
                   "run: --backend is missing; expected --backend mpi, nccl, cuda-threads or simulator");
  SHARDPROOF_CHECK(!options.flight_record || options.backend == Backend::nccl, usage_error,
                   "--flight-record: only a run over NCCL writes one; expected --backend nccl");
  check_cupti(options);
  SHARDPROOF_CHECK(!options.size || !options.case_name || *options.case_name == "sized", usage_error,
                   "--case {} with --size: a model of a given size has the case 'sized' alone; expected no --case",
                   printable(options.case_name.value_or("")));
  SHARDPROOF_CHECK(options.command != Command::launch || options.processes, usage_error,
                   "launch: --processes is missing; expected -n N, the number of ranks to start");
  check_zoo(options);
  check_output_paths(options);
  return {.options = std::move(options), .text = {}};
}

}  // namespace shardproof
