// Fingerprints of the zoo's faults in every model of the product (verify/fingerprint.h): the table that is committed as
// verify/data/fingerprints.json, and how many faults verification recognises by it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/zoo/fault.h"
#include "verify/hypothesis.h"

namespace shardproof::zoo {

// What verification would say of a fault.
struct Identification {
  std::string model;      // class name of the first of the fault's models that shows it; empty if none does
  bool is_named = false;  // among at most three
  bool is_alone = false;  // and no other
  std::string said;       // the hypothesis; empty if there is none
};

// Keeps the dense runs. No fault may be on.
class FaultPrinter {
 public:
  // Of correct code, by model: of all that have sizes.
  const std::map<std::string, Fingerprints>& correct();
  // Empty for a fault that exact arithmetic cannot be, or that shows nowhere.
  KnownMistake print(const Fault& fault);
  Identification identify(const Fault& fault, const FingerprintTable& table);

 private:
  Fingerprinter& printer_of(const ModelType& model);
  // config_error for a model whose parallel runs are not its dense runs.
  const Fingerprints& correct_of(const ModelType& model);
  Fingerprints prints_of(const ModelType& model, const Fault& fault);

  std::map<std::string, std::unique_ptr<Fingerprinter>> printers_;
  std::map<std::string, Fingerprints> correct_;
  std::map<std::string, std::vector<std::set<std::uint64_t>>> reached_;  // by correct code: model -> configuration
};

// `progress` is told the number of faults done, of all, and the next name.
FingerprintTable make_fingerprint_table(const std::vector<const Fault*>& faults,
                                        const std::function<void(int, int, std::string_view)>& progress);

}  // namespace shardproof::zoo
