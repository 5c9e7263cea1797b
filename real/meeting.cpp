#include "real/meeting.h"

#include <fcntl.h>

#include <cerrno>
#include <thread>

#include "core/error.h"
#include "real/mpi_bootstrap.h"
#include "real/store.h"
#include "real/store_server.h"

namespace shardproof {
namespace {

// The socket that the program which started this one has opened for it, so that no other can take the port.
Socket inherited_socket(int descriptor) {
  (void)port_of_listening(descriptor);  // before it is owned: what is no such socket is not ours to close
  const int flags = ::fcntl(descriptor, F_GETFL);
  const bool is_ready = flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0 &&
                        ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) == 0;
  SHARDPROOF_CHECK(is_ready, state_error, "the socket for the store cannot be used: {}", error_text(errno));
  return Socket(descriptor);
}

}  // namespace

Meeting::Meeting(const Launch& launch, std::uint64_t configuration, std::chrono::milliseconds patience, MeetingFor what)
    : patience_(patience) {
  if (launch.world_size == 1) return;
  SHARDPROOF_CHECK(launch.address.is_known() || launch.has_mpi_launcher, usage_error,
                   "{} ({}) does not say where rank 0 can be met; expected --address HOST:PORT or the environment "
                   "variable SHARDPROOF_ADDRESS",
                   launch.source, launch.claim);
  // What a launcher that MPI knows started agrees over MPI itself, unless somebody named a place.
  const bool is_named = launch.address.ports.size() == 1;
  if (launch.has_mpi_launcher && !is_named) return;
  if (launch.rank == 0) open_store(launch, configuration);
  const StoreAddress address =
      server_ ? StoreAddress{launch.address.host, {server_->port()}} : launch.address;  // it knows where it is
  store_ = std::make_unique<Store>(address,
                                   StoreHello{.rank = static_cast<std::uint32_t>(launch.rank),
                                              .world_size = static_cast<std::uint32_t>(launch.world_size),
                                              .run = launch.run,
                                              .configuration = configuration},
                                   patience);
  store_->barrier("start", patience);
  if (what == MeetingFor::mpi && !launch.has_mpi_launcher)
    bootstrap_ = std::make_unique<MpiBootstrap>(launch, *store_, patience);
}

Meeting::~Meeting() = default;

void Meeting::open_store(const Launch& launch, std::uint64_t configuration) {
  const StoreSettings settings{.world_size = launch.world_size, .configuration = configuration, .run = launch.run};
  server_ = launch.store_socket ? std::make_unique<StoreServer>(inherited_socket(*launch.store_socket), settings)
                                : std::make_unique<StoreServer>(launch.address, settings);
}

void Meeting::remove_files() const {
  if (bootstrap_) bootstrap_->remove_files();
}

void Meeting::end() {
  if (store_) store_->barrier("end", patience_);
}

void let_rank_0_end_first() { std::this_thread::sleep_for(std::chrono::seconds(2)); }

}  // namespace shardproof
