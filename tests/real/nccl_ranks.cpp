#include "tests/real/nccl_ranks.h"

#include "tests/fake_nccl/shared_store.h"

namespace shardproof::test {

NcclOptions patient_options() { return {.timeout = std::chrono::seconds(20)}; }

NcclOptions impatient_options() {
  return {.timeout = std::chrono::milliseconds(400), .heartbeat = std::chrono::milliseconds(60)};
}

std::vector<fake_nccl::RankEnd> run_nccl(int ranks, const NcclOptions& options, const NcclBody& body) {
  return fake_nccl::run_ranks(
      ranks,
      [&](int rank) {
        NcclOptions own = options;
        own.rank = rank;
        own.world_size = ranks;
        if (!own.flight_record.empty()) own.flight_record += std::to_string(rank);
        const NcclSession session(own, std::make_shared<fake_nccl::SharedStore>());
        const std::unique_ptr<Communicator> world = session.world();
        body(rank, *world);
        session.check();
      },
      std::chrono::seconds(30));
}

std::string trouble_of(int ranks, const NcclBody& body) {
  fake_nccl::make_fabric(ranks);
  std::string trouble;
  for (const fake_nccl::RankEnd& end : run_nccl(ranks, patient_options(), body)) {
    if (end.status != 0) trouble += "status " + std::to_string(end.status) + ": " + end.message + "\n";
  }
  for (const std::string& violation : fake_nccl::violations()) trouble += "the fake: " + violation + "\n";
  return trouble;
}

}  // namespace shardproof::test
