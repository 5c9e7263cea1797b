#include "tests/real/started_ranks.h"

namespace shardproof::test {

std::string pmi_library() { return SHARDPROOF_PMI; }

}  // namespace shardproof::test
