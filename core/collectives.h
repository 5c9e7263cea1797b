// The door for communication: models and algorithms move data between ranks through these functions and no others. Each
// allocates what it receives, posts one request (or several for the composed ones) and hands the result out of wait().
// All members of a group call the same functions in the same order. Tensors move as rows along axis 0; a tensor that is
// not contiguous is copied first. `purpose` must be a string literal; members must agree on it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/tensor.h"

namespace shardproof {

// The rows of all members, gathered: piece(i) is what member i sent.
class Gathered {
 public:
  Gathered() = default;
  // Member i's rows stand at i*stride in `buffer` if stride > 0 (padded form), one after the other if stride is 0.
  Gathered(Tensor buffer, std::vector<std::int64_t> rows, std::int64_t stride);
  int pieces() const { return static_cast<int>(rows_.size()); }
  std::int64_t rows_of(int member) const { return rows_[static_cast<std::size_t>(member)]; }
  // A view [rows_of(member), ..].
  Tensor piece(int member) const;
  // All pieces in member order [sum of rows, ..]: a view in the ragged form, a copy in the padded one.
  Tensor joined() const;

 private:
  Tensor buffer_;
  std::vector<std::int64_t> rows_;
  std::int64_t stride_ = 0;
};

namespace collectives {

// Every member contributes row_counts[rank] rows, and all know all counts. Moves them ragged or padded, as the
// communicator's gather form says; pads are poison and are trimmed per piece. Equal counts move as they are in both
// forms.
Pending<Gathered> all_gather(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts,
                             std::string_view purpose);
// The same with equal counts (found by all members through the signature if they are not): [rows, ..] -> [size*rows,
// ..].
Pending<Tensor> all_gather(Communicator& group, const Tensor& rows, std::string_view purpose);
// Sends send_counts[j] rows to member j and receives receive_counts[i] rows from member i, both in member order.
Pending<Tensor> all_to_all(Communicator& group, const Tensor& rows, std::span<const std::int64_t> send_counts,
                           std::span<const std::int64_t> receive_counts, std::string_view purpose);
// Sends all rows to member `to` and receives `receive_rows` rows from member `from`; -1 = nobody. Called by all
// members.
Pending<Tensor> exchange(Communicator& group, const Tensor& rows, int to, int from, std::int64_t receive_rows,
                         std::string_view purpose);
// Every member receives the root's tensor. All members pass a tensor of the same shape and type; only the root's values
// count.
Pending<Tensor> broadcast(Communicator& group, const Tensor& tensor, int root, std::string_view purpose);
// Member i receives row_counts[i] rows of the root's `rows`; the others pass any tensor of that type and row shape (its
// rows do not count), for instance an empty one.
Pending<Tensor> scatter(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts, int root,
                        std::string_view purpose);
// Member i receives rows of its own count of the elementwise sum over members, added in the order that the communicator
// is set to (member order unless set, so that the bits do not depend on the communicator): all-to-all of slices, then
// local additions.
Pending<Tensor> reduce_scatter(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts,
                               std::string_view purpose);
// The elementwise sum over members, every slice added by one of them in the order above: reduce-scatter, then an
// all-gather, so that all members have the same bits.
Pending<Tensor> all_reduce(Communicator& group, const Tensor& tensor, std::string_view purpose);
// Returns when all members have called it.
void barrier(Communicator& group, std::string_view purpose);
// Host side, blocking: every member contributes equally many integers; the result lists member 0's, member 1's, ..
std::vector<std::int64_t> all_gather_numbers(Communicator& group, std::span<const std::int64_t> numbers,
                                             std::string_view purpose);

}  // namespace collectives
}  // namespace shardproof
