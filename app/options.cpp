#include "app/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "app/build_info.h"
#include "core/error.h"
#include "core/file.h"
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
                   std::initializer_list<NamedChoice<Choice>> choices) {
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
    fail(ErrorKind::usage_error, "{}: {}", option, printable(error.what(), 1000));
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

  void sources(const std::string& name, const std::string& description, int min, int max) {
    app_->add_option(name, sources_, description)->required()->expected(min, max);
  }
  void value(const std::string& name, const std::string& placeholder, const std::string& description, Reader reader) {
    CLI::Option* const option =
        app_->add_option_function<std::string>(name, [](const std::string&) {}, description)->type_name(placeholder);
    // The parser takes the next word whatever it is.
    readers_.emplace_back(
        option, [placeholder, reader = std::move(reader)](const std::string& option_name, const std::string& text) {
          SHARDPROOF_CHECK(!text.starts_with("--"), usage_error,
                           "{}: its value is missing before '{}'; expected {} (a file of that name is ./{})",
                           option_name, printable(text), placeholder, printable(text));
          reader(option_name, text);
        });
  }
  void flag(const std::string& name, const std::string& description, std::function<void()> set) {
    CLI::Option* const option = app_->add_flag(name, description)->disable_flag_override();
    readers_.emplace_back(option, [set = std::move(set)](const std::string&, const std::string&) { set(); });
  }
  bool parsed() const { return app_->parsed(); }
  void read(Options& options) const {
    options.command = command_;
    options.sources = sources_;
    for (const auto& [option, reader] : readers_) {
      if (option->count() == 0) continue;
      SHARDPROOF_CHECK(option->count() == 1, usage_error, "{}: given {} times; expected once", option->get_name(),
                       option->count());
      reader(option->get_name(), option->results().front());
    }
  }

 private:
  Command command_;
  CLI::App* app_ = nullptr;
  std::vector<std::string> sources_;
  std::vector<std::pair<CLI::Option*, Reader>> readers_;
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
  command.value("--json", "FILE", "also write the result as JSON",
                [&](const std::string&, const std::string& text) { options.json = text; });
}

void add_configuration(Subcommand& command, Options& options) {
  command.value("--ring-degree", "R", "ranks of the ring", integer_into(options.ring_degree, kMaxSimulatedRanks));
  command.value("--ulysses-degree", "U", "ranks that exchange heads for tokens",
                integer_into(options.ulysses_degree, kMaxSimulatedRanks));
  command.flag("--ulysses-anything", "Ulysses for lengths and heads that do not divide",
               [&] { options.ulysses_anything = true; });
  command.flag("--ring-anything", "Ring for lengths that do not divide", [&] { options.ring_anything = true; });
  command.value("--rotate-method", "allgather|alltoall",
                "how a ring moves its chunks (default allgather; both if no configuration is named)",
                [&](const std::string& option, const std::string& text) {
                  options.rotate_method =
                      choice_from<const char*>(option, text, {{"allgather", "allgather"}, {"alltoall", "alltoall"}});
                });
  command.flag("--no-convert-to-fp32", "merge partial results in the type of the queries",
               [&] { options.convert_to_fp32 = false; });
  command.value("--tp-degree", "T", "tensor parallelism: above 1 it is refused, it is not offered yet",
                integer_into(options.tp_degree, kMaxSimulatedRanks));
  command.value("--mesh", "NAME=SIZE,...", "a mesh with dimensions ring and ulysses; others are replicas",
                [&](const std::string& option, const std::string& text) { options.mesh = mesh_from(option, text); });
}

void check_tier(const std::string& option, const std::string& text) {
  enum class Tier : std::uint8_t { exact, others };
  const Tier tier =
      choice_from<Tier>(option, text, {{"exact", Tier::exact}, {"rounding", Tier::others}, {"all", Tier::others}});
  SHARDPROOF_CHECK(tier != Tier::exact, usage_error,
                   "{}: 'exact' is not possible, this build has no exact tier; expected rounding or all", option);
}

enum class DeviceWish : std::uint8_t { by_dtype, reference, cpu, torch };

DeviceChoice device_for(DeviceWish wish, DType dtype) {
  SHARDPROOF_CHECK(wish != DeviceWish::torch, usage_error,
                   "--device: 'torch' is not part of this build; expected reference or cpu");
  if (wish == DeviceWish::by_dtype) return dtype == kFloat64 ? DeviceChoice::reference : DeviceChoice::cpu;
  if (wish == DeviceWish::cpu) return DeviceChoice::cpu;
  SHARDPROOF_CHECK(dtype.size() != 2, usage_error,
                   "--device reference with --dtype {}: the reference device computes in float64 and float32 only; "
                   "expected --device cpu",
                   dtype.name());
  return DeviceChoice::reference;
}

void add_run(Subcommand& command, Options& options, DeviceWish& device) {
  command.value("--plan", "shipped|default|FILE", "the plan: as diffusers ships it, corrected (default), or a file",
                [&](const std::string&, const std::string& text) { options.plan = text; });
  command.value("--case", "NAME", "one case (default: all)",
                [&](const std::string&, const std::string& text) { options.case_name = text; });
  command.value("--dtype", "TYPE", "float64 (default), float32, bfloat16 or float16",
                [&](const std::string& option, const std::string& text) {
                  options.dtype = choice_from<DType>(
                      option, text,
                      {{"float64", kFloat64}, {"float32", kFloat32}, {"bfloat16", kBFloat16}, {"float16", kFloat16}});
                });
  command.value("--tier", "exact|rounding|all", "what to verify (default: all that this build has: rounding)",
                check_tier);
  command.value("--device", "reference|cpu|torch",
                "what computes (default: reference for float64, cpu otherwise; torch is not built)",
                [&](const std::string& option, const std::string& text) {
                  device = choice_from<DeviceWish>(
                      option, text,
                      {{"reference", DeviceWish::reference}, {"cpu", DeviceWish::cpu}, {"torch", DeviceWish::torch}});
                });
  command.value("--gather", "ragged|padded", "form of uneven gathers (default: both, which must give the same bits)",
                [&](const std::string& option, const std::string& text) {
                  options.gather = choice_from<GatherChoice>(
                      option, text, {{"ragged", GatherChoice::ragged}, {"padded", GatherChoice::padded}});
                });
  command.value("--seed", "N", "of drawn weights and inputs, and of replicas' inputs (default 0)",
                seed_into(options.seed));
  command.value("--schedule-seed", "N", "of the order in which messages arrive (default 0)",
                seed_into(options.schedule_seed));
  command.value("--workers", "N", "threads that run simulated ranks, 1 to 256 (default 1)",
                [&](const std::string& option, const std::string& text) {
                  options.workers = static_cast<int>(integer_from(option, text, 1, kMaxSimulationWorkers));
                });
}

void add_backend(Subcommand& command, Options& options) {
  command.value("--backend", "mpi", "what carries the ranks: processes of mpirun",
                [&](const std::string& option, const std::string& text) {
                  SHARDPROOF_CHECK(text != "nccl" && text != "cuda-threads", usage_error,
                                   "{}: '{}' is not part of this build; expected mpi", option, text);
                  options.backend = choice_from<Backend>(option, text, {{"mpi", Backend::mpi}});
                });
}

constexpr const char* kSubcommands = "oracle, verify, plan or run (--help explains them)";

// The parser would only say that a subcommand is missing.
void check_subcommand(int count, const char* const* words) {
  SHARDPROOF_CHECK(count > 1, usage_error, "a subcommand is missing; expected {}", kSubcommands);
  const std::string first = words[1];
  const bool is_known = first == "oracle" || first == "verify" || first == "plan" || first == "run";
  SHARDPROOF_CHECK(is_known || first.starts_with('-'), usage_error, "'{}' is no subcommand; expected {}",
                   printable(first), kSubcommands);
}

// An unknown option with a value would else be reported as one source too many.
void check_option_names(CLI::App& program, int count, const char* const* words) {
  if (words[1][0] == '-') return;
  CLI::App* const command = program.get_subcommand(words[1]);
  for (int i = 2; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--") return;
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    SHARDPROOF_CHECK(command->get_option_no_throw(name) != nullptr, usage_error,
                     "'{}' is no option of {}; shardproof {} --help lists them", printable(name), words[1], words[1]);
  }
}

constexpr const char* kFooter =
    "Exit status: 0 everything that was run is verified; 1 a difference was found; 2 the request is wrong\n"
    "(bad file or option, refused by name, nothing verified, output that cannot be written); 3 internal error;\n"
    "4 a real peer failed.";

}  // namespace

std::string_view command_name(Command command) {
  switch (command) {
    case Command::oracle: return "oracle";
    case Command::verify: return "verify";
    case Command::plan: return "plan";
    case Command::run: return "run";
  }
  return "?";
}

CommandLine parse_command_line(int count, const char* const* words) {
  CLI::App program("Verifies that a diffusion transformer computes the same on many ranks as on one.", "shardproof");
  program.require_subcommand(1);
  program.footer(kFooter);
  program.set_version_flag("--version", version_text);

  Options options;
  DeviceWish device = DeviceWish::by_dtype;
  Subcommand oracle(program, Command::oracle, "our dense model against outputs exported from diffusers");
  oracle.sources("EXPORT_DIR", "folders with config.json, weights and cases", 1, CLI::detail::expected_max_vector_size);
  add_json(oracle, options);
  Subcommand verify(program, Command::verify, "every simulated rank against the dense run");
  Subcommand plan(program, Command::plan, "the resolved plan: module, argument, axis, sizes on every rank");
  Subcommand run(program, Command::run, "the same on real ranks: start it with mpirun");
  add_backend(run, options);
  for (Subcommand* command : {&verify, &plan, &run}) {
    command->sources("SOURCE", "an export directory, or a model's name (drawn weights and inputs)", 1, 1);
    add_configuration(*command, options);
    add_run(*command, options, device);
    add_json(*command, options);
  }

  check_subcommand(count, words);
  check_option_names(program, count, words);
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
  for (const Subcommand* command : {&oracle, &verify, &plan, &run}) {
    if (command->parsed()) command->read(options);
  }
  options.device = device_for(device, options.dtype);
  SHARDPROOF_CHECK(options.command != Command::run || options.backend, usage_error,
                   "run: --backend is missing; expected --backend mpi");
  return {.options = std::move(options), .text = {}};
}

}  // namespace shardproof
