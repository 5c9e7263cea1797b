// The library through which Open MPI 4 finds its world when mpirun has not started it: the PMI functions (version 1)
// that it calls, answered from the store of rank 0. Loaded by MPI at run time; nothing links it. See
// real/mpi_bootstrap.h, which sets the variables that it reads.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "real/store.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = -1;
constexpr int kMaxNameBytes = 64;
constexpr int kMaxKeyBytes = 200;
constexpr int kMaxValueBytes = 1 << 16;

struct World {
  int rank = 0;
  int size = 1;
  std::vector<int> local_ranks;
  std::chrono::milliseconds patience{0};
  std::unique_ptr<shardproof::Store> store;
  bool has_failed = false;  // a call of ours: another rank is the cause
};

World& world() {
  static World world;
  return world;
}

int number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

std::vector<int> numbers_of(const char* variable) {
  std::vector<int> numbers;
  const char* text = std::getenv(variable);
  while (text != nullptr && *text != '\0') {
    char* end = nullptr;
    numbers.push_back(static_cast<int>(std::strtol(text, &end, 10)));
    text = *end == ',' ? end + 1 : "";
  }
  return numbers;
}

// The caller is C: what goes wrong becomes a number, and a line for whoever reads MPI's own message about it.
template <class Call>
int guarded(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string line = "shardproof: while MPI started or ended: " + std::string(error.what()) + "\n";
    (void)!::write(STDERR_FILENO, line.data(), line.size());
    world().has_failed = true;
    return kFailure;
  }
}

int give(int* target, int value) {
  *target = value;
  return kSuccess;
}

int give_text(char* target, int bytes, const std::string& text) {
  if (bytes <= 0 || text.size() >= static_cast<std::size_t>(bytes)) return kFailure;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return kSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int PMI_Init(int* was_spawned) {
  return guarded([&] {
    World& here = world();
    const char* const host = std::getenv("SHARDPROOF_PMI_HOST");
    here.rank = number_of("SHARDPROOF_PMI_RANK");
    here.size = number_of("SHARDPROOF_PMI_SIZE");
    here.local_ranks = numbers_of("SHARDPROOF_PMI_LOCAL_RANKS");
    here.patience = std::chrono::milliseconds(number_of("SHARDPROOF_PMI_PATIENCE_MS"));
    const shardproof::StoreHello hello{.rank = static_cast<std::uint32_t>(here.rank),
                                       .world_size = static_cast<std::uint32_t>(here.size)};
    here.store = std::make_unique<shardproof::Store>(
        shardproof::StoreAddress{host == nullptr ? "" : host, {number_of("SHARDPROOF_PMI_PORT")}}, hello,
        here.patience);
    return give(was_spawned, 0);
  });
}

int PMI_Initialized(int* is_initialised) { return give(is_initialised, world().store ? 1 : 0); }

int PMI_Finalize() {
  world().store.reset();
  return kSuccess;
}

int PMI_Get_size(int* size) { return give(size, world().size); }
int PMI_Get_rank(int* rank) { return give(rank, world().rank); }
int PMI_Get_universe_size(int* size) { return give(size, world().size); }
int PMI_Get_appnum(int* number) { return give(number, 0); }

int PMI_Barrier() {
  return guarded([] {
    world().store->barrier("pmi", world().patience);
    return kSuccess;
  });
}

// The other ranks learn of it when they wait for this one. MPI gives its own status to a failure that it had from here.
int PMI_Abort(int status, const char*) {
  constexpr int kPeerFailed = 4;
  std::error_code problem;
  if (const char* const folder = std::getenv("SHARDPROOF_PMI_FOLDER")) std::filesystem::remove_all(folder, problem);
  ::_exit(world().has_failed ? kPeerFailed : status);
}

int PMI_KVS_Get_my_name(char* name, int bytes) { return give_text(name, bytes, "shardproof"); }
int PMI_KVS_Get_name_length_max(int* length) { return give(length, kMaxNameBytes); }
int PMI_KVS_Get_key_length_max(int* length) { return give(length, kMaxKeyBytes); }
int PMI_KVS_Get_value_length_max(int* length) { return give(length, kMaxValueBytes); }

int PMI_KVS_Put(const char*, const char* key, const char* value) {
  return guarded([&] {
    world().store->set(key, value, world().patience);
    return kSuccess;
  });
}

int PMI_KVS_Commit(const char*) { return kSuccess; }

// MPI asks for more keys than there are, to find the last one.
int PMI_KVS_Get(const char*, const char* key, char* value, int bytes) {
  return guarded([&] {
    const std::optional<std::string> found = world().store->get_if_set(key, world().patience);
    return found ? give_text(value, bytes, *found) : kFailure;
  });
}

int PMI_Get_clique_size(int* size) { return give(size, static_cast<int>(world().local_ranks.size())); }

int PMI_Get_clique_ranks(int* ranks, int length) {
  const std::vector<int>& locals = world().local_ranks;
  if (length < static_cast<int>(locals.size())) return kFailure;
  std::copy(locals.begin(), locals.end(), ranks);
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
