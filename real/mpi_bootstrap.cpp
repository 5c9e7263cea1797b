#include "real/mpi_bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/random.h"
#include "real/library_file.h"
#include "real/peer_failure.h"
#include "real/store_server.h"

namespace shardproof {
namespace {

std::string library_path() {
  const LibraryFile file = find_library_file("libshardproof_pmi.so", "SHARDPROOF_PMI_LIBRARY");
  if (file.path) return *file.path;
  fail(ErrorKind::file_error,
       "'{}' is missing; expected it beside the program, or where SHARDPROOF_PMI_LIBRARY says: without it, only mpirun "
       "can start ranks of MPI",
       printable(file.places.front(), 1000));
}

// Equal for processes of one machine.
std::string machine_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return std::string(name.data()) + read_text_file("/proc/sys/kernel/random/boot_id", 1000);
}

// Where the ranks of this machine keep what they share, so that all of it can be removed at once. Who started them may
// have made one, and then removes it even if all ranks are killed.
RunFolder folder_for(const std::string& job) {
  const char* const told = std::getenv("SHARDPROOF_RUN_FOLDER");
  return told != nullptr ? RunFolder::made_by_another(told) : RunFolder::shared(job);
}

void set_variable(const char* name, const std::string& value) {
  SHARDPROOF_CHECK(::setenv(name, value.c_str(), 1) == 0, state_error, "the environment variable {} cannot be set",
                   name);
}

}  // namespace

MpiBootstrap::MpiBootstrap(const Launch& launch, Store& store, std::chrono::milliseconds patience)
    : store_(store), patience_(patience) {
  const std::string library = library_path();
  if (launch.rank == 0) {
    StoreSettings settings;
    settings.world_size = launch.world_size;
    server_ = std::make_unique<StoreServer>(StoreAddress{launch.address.host, {0}}, settings);
    // Names the files of this run that Open MPI makes. It takes the number for two of 16 bits, of which it uses 15.
    const std::uint64_t job = stable_hash(fmt::format("{} {} {}", ::getpid(), server_->port(), machine_name()));
    store.set("mpi/job", std::to_string((job & 0x7fff7fffU) | 1U), patience);
    store.set("mpi/port", std::to_string(server_->port()), patience);
  }
  const std::string machine = machine_name();
  store.set(fmt::format("mpi/machine/{}", launch.rank), machine, patience);
  std::string locals;
  for (int rank = 0; rank < launch.world_size; ++rank) {
    if (store.get(fmt::format("mpi/machine/{}", rank), patience) != machine) continue;
    locals += fmt::format("{}{}", locals.empty() ? "" : ",", rank);
  }
  const std::string job = store.get("mpi/job", patience);
  folder_.emplace(folder_for(job));
  // Every kind of file that Open MPI makes; the other ways in which it could share memory have no folder.
  for (const char* const variable :
       {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_sm_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory", "OMPI_MCA_orte_tmpdir_base", "SHARDPROOF_PMI_FOLDER"}) {
    set_variable(variable, folder_->path());
  }
  set_variable("OMPI_MCA_shmem", "mmap");
  set_variable("FLUX_JOB_ID", job);
  set_variable("FLUX_PMI_LIBRARY_PATH", library);
  set_variable("SHARDPROOF_PMI_HOST", launch.address.host);
  set_variable("SHARDPROOF_PMI_PORT", store.get("mpi/port", patience));
  set_variable("SHARDPROOF_PMI_RANK", std::to_string(launch.rank));
  set_variable("SHARDPROOF_PMI_SIZE", std::to_string(launch.world_size));
  set_variable("SHARDPROOF_PMI_LOCAL_RANKS", locals);
  // Its words come before those of who watches MPI.
  set_variable("SHARDPROOF_PMI_PATIENCE_MS", std::to_string(patience.count() * 3 / 4));
}

MpiBootstrap::~MpiBootstrap() {
  constexpr std::chrono::milliseconds kLongest{5000};
  try {
    store_.barrier("mpi/end", std::min(patience_, kLongest));
  } catch (const Error&) {
    // One that has failed does not come, and needs nothing any more.
  }
  remove_files();
}

void MpiBootstrap::remove_files() const {
  if (folder_) folder_->remove();
}

}  // namespace shardproof
