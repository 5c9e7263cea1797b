// The table of faults: small, realistic mistakes in our own algorithm code, each of which verification must find. A
// fault is a list of edits (file, exact statement, replacement), which a generator compiles into a copy of the sources
// behind a switch, or a changed plan. The product itself carries none of this.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace shardproof::zoo {

// The modes of context parallelism, as a fault says where it can act.
inline constexpr std::string_view kAllModes = "ring ring_anything ulysses ulysses_anything unified";

// Replaces the statement, which must stand exactly once in the file, or once behind `after`, which then must stand
// once. A text that ends in a semicolon is replaced as a statement, any other as an expression.
struct Edit {
  std::string_view file;  // from the root: "parallel/ring_attention.cpp"
  std::string_view after = {};
  std::string_view statement;
  std::string_view replacement;
};

// What is expected to notice.
enum class Killer : std::uint8_t {
  arithmetic,  // any number: what is computed is another thing
  rounding,    // floating-point numbers only: in exact arithmetic it is the same thing
  order,       // numbers with an order: exact arithmetic has none, and runs a stand-in, which is not counted for it
};

struct Fault {
  std::string_view name;  // "RING_START_OWN"
  int catalogue = 0;      // its number in the catalogue of the verification specification; 0 for one of our own
  std::string_view what;  // what it models
  // Empty for a changed plan (see plan_faults.h).
  std::vector<Edit> edits;
  // Where it shows: names of models and of modes (see scenarios.h), separated by blanks.
  std::string_view models = "flux";
  std::string_view modes;
  // Of the models' cases only the one of this name; empty: all.
  std::string_view only_case = {};
  Killer killer = Killer::arithmetic;
  // The places that a diagnosis may name, separated by blanks: "attention"; "entries", the dividing and gathering of a
  // plan; "output", one that no entry gathers; "argument:ids", "class:FluxAttention", "module:to_out", "sharded:attn",
  // an argument, the code of a module, or that of a sharded layer, whose name, class or path has that in it. Empty:
  // that of the last edit's file (see expected_place()).
  std::string_view where = {};
};

// A fault of the catalogue that our design cannot have, or one that changes nothing: the reason, or the proof.
struct Absent {
  std::string_view name;
  int catalogue = 0;
  std::string_view reason;
};

// The tables, one a file.
std::span<const Fault> ring_faults();
std::span<const Fault> ulysses_faults();
std::span<const Fault> attention_faults();
std::span<const Fault> tensor_parallel_faults();
std::span<const Fault> model_faults();
std::span<const Fault> plan_faults();

std::span<const Absent> inexpressible_faults();
std::span<const Absent> equivalent_faults();

struct FaultTable {
  std::string_view title;
  std::span<const Fault> faults;
};
const std::vector<FaultTable>& fault_tables();

// All of them in the order of the tables.
const std::vector<Fault>& all_faults();

}  // namespace shardproof::zoo
