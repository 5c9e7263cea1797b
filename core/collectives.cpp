#include "core/collectives.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/ops.h"
#include "core/sharding.h"

namespace shardproof {

Gathered::Gathered(Tensor buffer, std::vector<std::int64_t> rows, std::int64_t stride)
    : buffer_(std::move(buffer)), rows_(std::move(rows)), stride_(stride) {}

Tensor Gathered::piece(int member) const {
  const std::int64_t start =
      stride_ > 0 ? member * stride_ : std::accumulate(rows_.begin(), rows_.begin() + member, std::int64_t{0});
  return buffer_.narrow(0, start, rows_of(member));
}

Tensor Gathered::joined() const {
  if (stride_ == 0) return buffer_;
  std::vector<Tensor> all;
  for (int member = 0; member < pieces(); ++member) all.push_back(piece(member));
  return ops::concat(all, 0);
}

namespace collectives {
namespace {

Shape with_rows(const Shape& row_shape, std::int64_t rows) { return row_shape.inserted(0, rows); }

void check_rows(Operation operation, const Tensor& rows, std::string_view purpose) {
  SHARDPROOF_CHECK(rows.rank() >= 1, shape_error, "{} '{}' of a scalar", operation_name(operation), purpose);
}

Request request_for(Operation operation, const Tensor& rows, std::string_view purpose) {
  check_rows(operation, rows, purpose);
  Request request;
  request.operation = operation;
  request.purpose = purpose;
  request.dtype = rows.dtype();
  request.row_shape = rows.shape().erased(0);
  return request;
}

Pending<Tensor> post(Communicator& group, Request request) {
  const Tensor receive = request.receive;
  return Pending<Tensor>(group.post(std::move(request)), receive);
}

std::vector<std::int64_t> copy_of(std::span<const std::int64_t> counts) { return {counts.begin(), counts.end()}; }

void check_count_per_member(const Communicator& group, std::span<const std::int64_t> counts, std::string_view purpose) {
  SHARDPROOF_CHECK(static_cast<int>(counts.size()) == group.size(), collective_error,
                   "'{}' in {} got {} row counts for {} members", purpose, group.name(), counts.size(), group.size());
}

Request gather_request(const Tensor& rows, std::vector<std::int64_t> counts, std::string_view purpose) {
  Request request = request_for(Operation::all_gather, rows, purpose);
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  request.send = ops::contiguous(rows);
  request.receive = rows.device().empty(with_rows(request.row_shape, total), rows.dtype());
  request.receive_rows = std::move(counts);
  return request;
}

// [rows, ..] -> [longest, ..] with poison behind the rows.
Tensor padded_to(const Tensor& rows, std::int64_t longest) {
  if (rows.size(0) == longest) return rows;
  const Tensor padded = ops::padding(rows.device(), with_rows(rows.shape().erased(0), longest), rows.dtype());
  ops::copy_into(padded.narrow(0, 0, rows.size(0)), rows);
  return padded;
}

// The sum of the members' rows, added one after the other in the given order.
Tensor sum_in_order(const Tensor& received, std::span<const int> order, std::int64_t rows) {
  Tensor sum = received.narrow(0, order[0] * rows, rows);
  for (const int member : order.subspan(1)) sum = ops::add(sum, received.narrow(0, member * rows, rows));
  return sum;
}

// The sum of members [first, first + count): of the sums of both halves.
Tensor sum_as_tree(const Tensor& received, int first, int count, std::int64_t rows) {
  if (count == 1) return received.narrow(0, first * rows, rows);
  const int left = (count + 1) / 2;
  return ops::add(sum_as_tree(received, first, left, rows), sum_as_tree(received, first + left, count - left, rows));
}

}  // namespace

Pending<Gathered> all_gather(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts,
                             std::string_view purpose) {
  check_count_per_member(group, row_counts, purpose);
  std::vector<std::int64_t> counts = copy_of(row_counts);
  if (group.size() == 1) return Pending<Gathered>(Gathered(rows, std::move(counts), 0));
  const auto [shortest, longest] = std::minmax_element(counts.begin(), counts.end());
  const bool padded = group.gather_form() == GatherForm::padded && *shortest != *longest;
  const std::int64_t stride = padded ? *longest : 0;
  std::vector<std::int64_t> moved = padded ? std::vector<std::int64_t>(counts.size(), stride) : counts;
  Request request = gather_request(padded ? padded_to(rows, stride) : rows, std::move(moved), purpose);
  Gathered result(request.receive, std::move(counts), stride);
  return Pending<Gathered>(group.post(std::move(request)), std::move(result));
}

Pending<Tensor> all_gather(Communicator& group, const Tensor& rows, std::string_view purpose) {
  check_rows(Operation::all_gather, rows, purpose);
  if (group.size() == 1) return Pending<Tensor>(rows);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), rows.size(0));
  return post(group, gather_request(rows, std::move(counts), purpose));
}

Pending<Tensor> all_to_all(Communicator& group, const Tensor& rows, std::span<const std::int64_t> send_counts,
                           std::span<const std::int64_t> receive_counts, std::string_view purpose) {
  check_count_per_member(group, send_counts, purpose);
  check_count_per_member(group, receive_counts, purpose);
  Request request = request_for(Operation::all_to_all, rows, purpose);
  const std::int64_t total = std::accumulate(receive_counts.begin(), receive_counts.end(), std::int64_t{0});
  request.send = ops::contiguous(rows);
  request.receive = rows.device().empty(with_rows(request.row_shape, total), rows.dtype());
  request.send_rows = copy_of(send_counts);
  request.receive_rows = copy_of(receive_counts);
  return post(group, std::move(request));
}

Pending<Tensor> exchange(Communicator& group, const Tensor& rows, int to, int from, std::int64_t receive_rows,
                         std::string_view purpose) {
  Request request = request_for(Operation::exchange, rows, purpose);
  if (to >= 0) request.send = ops::contiguous(rows);
  request.receive = rows.device().empty(with_rows(request.row_shape, from >= 0 ? receive_rows : 0), rows.dtype());
  request.to = to;
  request.from = from;
  return post(group, std::move(request));
}

Pending<Tensor> broadcast(Communicator& group, const Tensor& tensor, int root, std::string_view purpose) {
  if (group.size() == 1) return Pending<Tensor>(tensor);
  Request request = request_for(Operation::broadcast, tensor, purpose);
  if (group.rank() == root) request.send = ops::contiguous(tensor);
  request.receive = tensor.device().empty(tensor.shape(), tensor.dtype());
  request.root = root;
  return post(group, std::move(request));
}

Pending<Tensor> scatter(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts, int root,
                        std::string_view purpose) {
  check_count_per_member(group, row_counts, purpose);
  if (group.size() == 1) return Pending<Tensor>(rows);
  Request request = request_for(Operation::scatter, rows, purpose);
  if (group.rank() == root) {
    request.send = ops::contiguous(rows);
    request.send_rows = copy_of(row_counts);
  }
  const std::int64_t own = row_counts[static_cast<std::size_t>(group.rank())];
  request.receive = rows.device().empty(with_rows(request.row_shape, own), rows.dtype());
  request.root = root;
  return post(group, std::move(request));
}

Pending<Tensor> reduce_scatter(Communicator& group, const Tensor& rows, std::span<const std::int64_t> row_counts,
                               std::string_view purpose) {
  check_count_per_member(group, row_counts, purpose);
  if (group.size() == 1) return Pending<Tensor>(rows);
  const int members = group.size();
  const std::int64_t own = row_counts[static_cast<std::size_t>(group.rank())];
  Request request = request_for(Operation::all_to_all, rows, purpose);
  request.reduction = Reduction::sum;
  request.send = ops::contiguous(rows);
  request.receive = rows.device().empty(with_rows(request.row_shape, own * members), rows.dtype());
  request.send_rows = copy_of(row_counts);
  request.receive_rows.assign(static_cast<std::size_t>(members), own);
  const Tensor receive = request.receive;
  const bool as_tree = group.reduction_order() == ReductionOrder::tree;
  std::vector<int> order = group.next_reduction_order();
  return Pending<Tensor>(
      group.post(std::move(request)), receive,
      [members, own, as_tree, order = std::move(order)](const Tensor& received) {
        return ops::contiguous(as_tree ? sum_as_tree(received, 0, members, own) : sum_in_order(received, order, own));
      });
}

Pending<Tensor> all_reduce(Communicator& group, const Tensor& tensor, std::string_view purpose) {
  if (group.size() == 1) return Pending<Tensor>(tensor);
  const Tensor flat = ops::contiguous(tensor).view({tensor.numel()});
  const std::vector<std::int64_t> counts = balanced_sizes(tensor.numel(), group.size());
  Pending<Tensor> slice = reduce_scatter(group, flat, counts, purpose);
  const Tensor own = slice.wait();
  Pending<Tensor> all = post(group, gather_request(own, counts, purpose));
  return Pending<Tensor>(all.wait().view(tensor.shape()));
}

void barrier(Communicator& group, std::string_view purpose) {
  Request request;
  request.operation = Operation::barrier;
  request.purpose = purpose;
  group.post(std::move(request))->wait();
}

std::vector<std::int64_t> all_gather_numbers(Communicator& group, std::span<const std::int64_t> numbers,
                                             std::string_view purpose) {
  Request request;
  request.operation = Operation::all_gather_numbers;
  request.purpose = purpose;
  request.numbers = copy_of(numbers);
  const std::unique_ptr<Work> work = group.post(std::move(request));
  work->wait();
  return copy_of(work->numbers());
}

}  // namespace collectives
}  // namespace shardproof
