// Which known mistake a difference looks like. The fingerprints of code with one mistake each are data, made once from
// code that is right otherwise (docs: CONTRIBUTING.md); here those of the code at hand are compared with them. Equality
// in exact arithmetic is no proof of the cause, but two different mistakes seldom compute the same. Source:
// verification specification, section 9.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "models/model_type.h"
#include "reports/result.h"
#include "verify/fingerprint.h"

namespace shardproof {

// Of one model, by configuration (see fingerprint_configurations()).
using Fingerprints = std::vector<std::string>;

struct KnownMistake {
  std::string name;
  std::string what;  // what it models
  // By model (class name), then configuration: only those that differ from correct code's. "stopped" alone is any stop,
  // of a mistake whose message depends on chance (such as what stands behind the end of a list).
  std::map<std::string, std::map<std::size_t, std::string>> prints = {};
};

struct FingerprintTable {
  std::map<std::string, Fingerprints> correct = {};  // by model
  std::vector<KnownMistake> mistakes = {};

  Json to_json() const;
  // file_error naming key path, value and what was expected, also for a table of other configurations.
  static FingerprintTable from_json(const Json& json);
  static FingerprintTable read(const std::filesystem::path& path);
};

// What was found about the code and the plans at hand.
struct Explanation {
  std::optional<Hypothesis> hypothesis = std::nullopt;
  // Why nothing can be said: the model is not in the table, or the table was made from other code. Empty where the
  // comparison was possible, whatever it gave.
  std::string obstacle = {};
};

// `prints` are those of the code at hand in `model`, `dense` those that correct code would have by its own dense runs.
Explanation explain(const FingerprintTable& table, const std::string& model, const Fingerprints& prints,
                    const Fingerprints& dense);

// The same, with fingerprints taken under these plans. Takes some tenths of a second.
Explanation explain(const FingerprintTable& table, const ModelType& model, const Fingerprinter::Plans& plans);

}  // namespace shardproof
