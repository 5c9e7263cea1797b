#include "real/launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/random.h"

namespace shardproof {
namespace {

constexpr int kMaxRanks = 1 << 20;

// A program or person that says where a process stands, by the names of what it sets.
struct Source {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;  // none if it does not say
  bool mpi_knows_it;
};

constexpr std::array kSources{
    Source{"options", "--rank", "--world-size", "--local-rank", nullptr, false},
    Source{"SHARDPROOF_*", "SHARDPROOF_RANK", "SHARDPROOF_WORLD_SIZE", "SHARDPROOF_LOCAL_RANK", "SHARDPROOF_LOCAL_SIZE",
           false},
    Source{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    Source{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
           "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    Source{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
    Source{"SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, true},
};
constexpr std::size_t kTorchrun = 2, kSlurm = 5;

std::string what_it_is(std::string_view name) {
  return fmt::format("{} {}", name.starts_with("--") ? "option" : "environment variable", name);
}

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Said {
  const char* name = nullptr;
  int number = 0;
  std::string text() const { return fmt::format("{}={}", name, number); }
};

// What one source says.
struct Claim {
  const Source* source = nullptr;
  Said rank, world_size;
  std::optional<Said> local_rank, local_size;
};

class Reader {
 public:
  Reader(const LaunchOptions& options, const Lookup& variable) : options_(options), variable_(variable) {}

  std::optional<std::string> text(std::string_view name) const {
    if (name == "--rank") return text_of(options_.rank);
    if (name == "--world-size") return text_of(options_.world_size);
    if (name == "--local-rank") return text_of(options_.local_rank);
    return variable_(name);
  }

  std::optional<Said> number(const char* name) const {
    const std::optional<std::string> value = name == nullptr ? std::nullopt : text(name);
    if (!value) return std::nullopt;
    const std::optional<std::int64_t> number = number_in(*value);
    SHARDPROOF_CHECK(number && *number >= 0 && *number <= kMaxRanks, usage_error,
                     "{} is '{}'; expected a number from 0 to {}", what_it_is(name), printable(*value), kMaxRanks);
    return Said{name, static_cast<int>(*number)};
  }

  std::optional<Claim> claim(const Source& source) const {
    const std::optional<Said> rank = number(source.rank);
    const std::optional<Said> size = number(source.world_size);
    if (!rank && !size) {
      SHARDPROOF_CHECK(&source != &kSources[0] || !options_.local_rank, usage_error,
                       "option --local-rank is given without --rank and --world-size; expected all of them");
      return std::nullopt;
    }
    SHARDPROOF_CHECK(rank && size, usage_error, "{} is set, but {} is not; {} both",
                     what_it_is(rank ? source.rank : source.world_size), rank ? source.world_size : source.rank,
                     setter(source));
    SHARDPROOF_CHECK(rank->number < size->number, usage_error, "{}: rank {} does not lie in {}", source.name,
                     rank->text(), size->text());
    Claim claim{&source, *rank, *size, number(source.local_rank), number(source.local_size)};
    SHARDPROOF_CHECK(!claim.local_rank || !claim.local_size || claim.local_rank->number < claim.local_size->number,
                     usage_error, "{}: local rank {} does not lie in {}", source.name, claim.local_rank->text(),
                     claim.local_size->text());
    return claim;
  }

  // Not in a batch script or a shell of an allocation, whose step numbers, if any, are at the end of the range.
  bool is_in_slurm_step() const {
    constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;
    const std::optional<std::string> step = variable_("SLURM_STEP_ID");
    if (!step) return false;
    const std::optional<std::int64_t> number = number_in(*step);
    return number && *number >= 0 && *number < kFirstSpecialStep;
  }

 private:
  static std::optional<std::string> text_of(std::optional<int> number) {
    return number ? std::optional(std::to_string(*number)) : std::nullopt;
  }
  static std::string setter(const Source& source) {
    if (&source == &kSources[0]) return "expected";
    if (&source == &kSources[1]) return "expected";
    return fmt::format("{} sets", &source == &kSources[3] ? "mpirun" : source.name);
  }

  const LaunchOptions& options_;
  const Lookup& variable_;
};

void check_agreement(const Claim& first, const Claim& other) {
  const auto check = [&](std::string_view what, const Said& mine, const Said& theirs) {
    SHARDPROOF_CHECK(mine.number == theirs.number, usage_error,
                     "{} and {} contradict each other about the {}: {}, but {}; unset what does not belong to this run",
                     first.source->name, other.source->name, what, mine.text(), theirs.text());
  };
  check("number of ranks", first.world_size, other.world_size);
  check("rank", first.rank, other.rank);
  if (first.local_rank && other.local_rank) check("local rank", *first.local_rank, *other.local_rank);
  if (first.local_size && other.local_size) check("number of local ranks", *first.local_size, *other.local_size);
}

std::vector<Claim> claims_of(const Reader& reader) {
  std::vector<Claim> claims;
  bool has_launcher = false;
  for (std::size_t i = 0; i < kSources.size(); ++i) {
    if (i == kSlurm && (has_launcher || !reader.is_in_slurm_step())) continue;
    std::optional<Claim> claim = reader.claim(kSources[i]);
    if (!claim) continue;
    has_launcher = has_launcher || i >= kTorchrun;
    claims.push_back(*claim);
  }
  return claims;
}

// Eight ports that follow from a number, below those that systems give out by themselves.
std::vector<int> derived_ports(std::uint64_t number, int held) {
  constexpr std::uint64_t kPorts = 8, kFirst = 20000, kCount = 12000;
  std::vector<int> ports;
  for (std::uint64_t i = 0; i < kPorts; ++i) {
    const int port = static_cast<int>(kFirst + (kPorts * number + i) % kCount);
    if (port != held) ports.push_back(port);
  }
  return ports;
}

void meet_as_torchrun_says(const Lookup& variable, Launch& launch) {
  const std::optional<std::string> host = variable("MASTER_ADDR"), port_text = variable("MASTER_PORT");
  if (!host && !port_text) return;
  SHARDPROOF_CHECK(host && port_text, usage_error, "environment variable {} is set, but {} is not; torchrun sets both",
                   host ? "MASTER_ADDR" : "MASTER_PORT", host ? "MASTER_PORT" : "MASTER_ADDR");
  const int port = port_from("environment variable MASTER_PORT", *port_text, *port_text);
  launch.address = {*host, derived_ports(static_cast<std::uint64_t>(port), port)};
  launch.run =
      stable_hash(fmt::format("torchrun {} {} {} {}", *host, port, variable("TORCHELASTIC_RUN_ID").value_or(""),
                              variable("TORCHELASTIC_RESTART_COUNT").value_or("0")));
}

// "node[01-04,07],other" -> "node01".
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket + 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

void meet_as_slurm_says(const Lookup& variable, Launch& launch) {
  const std::optional<std::string> nodes = variable("SLURM_STEP_NODELIST");
  if (!nodes || nodes->empty()) return;
  const std::string step =
      fmt::format("slurm {} {}", variable("SLURM_JOB_ID").value_or(""), variable("SLURM_STEP_ID").value_or(""));
  launch.run = stable_hash(step);
  launch.address = {first_host(*nodes), derived_ports(launch.run, 0)};
}

}  // namespace

Launch launch_from(const LaunchOptions& options, const Lookup& variable) {
  const Reader reader(options, variable);
  const std::vector<Claim> claims = claims_of(reader);
  Launch launch{.source = "none", .claim = "no launcher"};
  if (!claims.empty()) {
    const Claim& first = claims.front();
    launch.rank = first.rank.number;
    launch.world_size = first.world_size.number;
    launch.source = first.source->name;
    launch.claim = fmt::format("{}, {}", first.rank.text(), first.world_size.text());
  }
  launch.local_rank = launch.rank;
  launch.local_size = launch.world_size;
  for (auto claim = claims.rbegin(); claim != claims.rend(); ++claim) {  // the first one counts
    check_agreement(claims.front(), *claim);
    if (claim->local_rank) launch.local_rank = claim->local_rank->number;
    if (claim->local_size) launch.local_size = claim->local_size->number;
    // Of SLURM only where it was told to (srun --mpi=pmix).
    const bool is_silent = claim->source == &kSources[kSlurm] && !variable("PMIX_RANK");
    launch.has_mpi_launcher = launch.has_mpi_launcher || (claim->source->mpi_knows_it && !is_silent);
  }
  const auto says = [&](std::size_t source) {
    return std::any_of(claims.begin(), claims.end(),
                       [&](const Claim& claim) { return claim.source == &kSources[source]; });
  };
  if (says(kTorchrun)) meet_as_torchrun_says(variable, launch);
  if (says(kSlurm)) meet_as_slurm_says(variable, launch);
  if (const std::optional<std::string> address = variable("SHARDPROOF_ADDRESS")) {
    launch.address = address_from("environment variable SHARDPROOF_ADDRESS", *address);
  }
  if (const std::optional<Said> socket = reader.number("SHARDPROOF_STORE_SOCKET")) launch.store_socket = socket->number;
  if (options.address) launch.address = address_from("--address", *options.address);
  return launch;
}

Launch launch_from_environment(const LaunchOptions& options) {
  return launch_from(options, [](std::string_view variable) -> std::optional<std::string> {
    const char* const text = std::getenv(std::string(variable).c_str());
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  });
}

bool is_launcher_variable(std::string_view name) {
  const auto is_one = [&](const char* variable) { return variable != nullptr && name == variable; };
  for (const Source& source : kSources) {
    if (is_one(source.rank) || is_one(source.world_size) || is_one(source.local_rank) || is_one(source.local_size)) {
      return true;
    }
  }
  constexpr std::array<std::string_view, 7> kNames{
      "SHARDPROOF_RUN_FOLDER", "SHARDPROOF_ADDRESS", "SHARDPROOF_STORE_SOCKET", "MASTER_ADDR", "MASTER_PORT",
      "SLURM_STEP_ID",         "FLUX_JOB_ID"};
  constexpr std::array<std::string_view, 5> kBeginnings{"TORCHELASTIC_", "PMIX_", "OMPI_UNIVERSE", "OMPI_MCA_ess",
                                                        "OMPI_MCA_orte"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

}  // namespace shardproof
