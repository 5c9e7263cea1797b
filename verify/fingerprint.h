// Fingerprints of what a model computes in parallel: a handful of tiny configurations in exact arithmetic, and of each
// a hash of all outputs on all ranks. Nothing in them depends on the sources' options, on seeds or on the machine, so
// that those of code with a known mistake can be kept, and be found again in code that has the same mistake. Source:
// verification specification, section 9.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_type.h"
#include "parallel/config.h"
#include "parallel/parallelism.h"
#include "verify/parallel_run.h"

namespace shardproof {

struct FingerprintConfiguration {
  ModelSize size;  // without features
  enum class Features : std::uint8_t { none, all } features = Features::none;
  ParallelConfig config;
  // "text=4,image=7,..; ring_anything with ring=3,ulysses=1, alltoall; all features".
  std::string text() const;
};

// Ring with both rotations, Ulysses, their forms for uneven lengths of text, image and heads, Unified, tensor
// parallelism alone and with these.
const std::vector<FingerprintConfiguration>& fingerprint_configurations();

struct Fingerprint {
  // 16 hexadecimal digits; after "stopped " or "refused " those of the message; empty for a configuration that the
  // model cannot have, or has no plan for.
  std::string print;
  std::string reason;  // why it stopped or was refused
};

// The reason of a stop by an error of the simulator's own, such as memory that ran out where a size was read from
// memory that nothing wrote: its message would depend on chance.
inline constexpr std::string_view kInternalErrorReason = "an internal error";

// Takes fingerprints of one model with its hostile settings, weights and inputs being drawn; keeps them and the dense
// runs.
class Fingerprinter {
 public:
  using Plans = std::function<ParallelPlans(const Json& config)>;
  explicit Fingerprinter(const ModelType& model);
  ~Fingerprinter();

  // The fingerprint that correct code has: as if every rank had returned what the dense run does. Empty as above.
  const std::string& dense(std::size_t configuration);
  Fingerprint take(std::size_t configuration, const Plans& plans);

 private:
  struct Bench;
  Bench& bench(std::size_t configuration);
  static ParallelRun run_of(Bench& bench, const ParallelConfig& config, const ParallelPlans& plans);

  ModelType model_;
  std::vector<std::unique_ptr<Bench>> benches_;  // by configuration; null until needed
};

}  // namespace shardproof
