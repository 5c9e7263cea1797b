#include "real/launcher.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr int kMaxRanks = 1 << 20;

std::optional<int> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view value(text);
  int number = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
  SHARDPROOF_CHECK(status == std::errc{} && end == value.data() + value.size() && number >= 0 && number <= kMaxRanks,
                   usage_error, "environment variable {} is '{}'; expected a number from 0 to {}", variable, value,
                   kMaxRanks);
  return number;
}

}  // namespace

Launch launch_from_environment() {
  const std::optional<int> rank = number_from("OMPI_COMM_WORLD_RANK");
  const std::optional<int> size = number_from("OMPI_COMM_WORLD_SIZE");
  if (!rank && !size) return {.source = "none"};
  SHARDPROOF_CHECK(rank && size, usage_error, "environment variable {} is set, but {} is not; mpirun sets both",
                   rank ? "OMPI_COMM_WORLD_RANK" : "OMPI_COMM_WORLD_SIZE",
                   rank ? "OMPI_COMM_WORLD_SIZE" : "OMPI_COMM_WORLD_RANK");
  SHARDPROOF_CHECK(*rank < *size, usage_error,
                   "environment: rank OMPI_COMM_WORLD_RANK={} does not lie in OMPI_COMM_WORLD_SIZE={}", *rank, *size);
  return {.rank = *rank,
          .world_size = *size,
          .local_rank = number_from("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0),
          .local_size = number_from("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1),
          .source = "Open MPI"};
}

}  // namespace shardproof
