#include "core/host_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "core/element_types.h"
#include "core/error.h"
#include "core/host_parallel.h"
#include "core/strided_loop.h"

namespace shardproof {
namespace {

// A block that several storages read; it goes back to its pool with the last of them.
struct SharedBlock {
  SharedBlock(BlockPool& from, std::byte* block, std::size_t size) : pool(from), data(block), bytes(size) {}
  ~SharedBlock() { pool.release(data, bytes); }
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  BlockPool& pool;
  std::byte* data;
  std::size_t bytes;
};

// The control block that holds this object owns the handle to the pool, so the pool outlives the block.
class PooledStorage final : public Storage {
 public:
  PooledStorage(Device& device, BlockPool& pool, std::size_t bytes)
      : Storage(device, pool.acquire(bytes), bytes), pool_(pool) {}
  ~PooledStorage() override { give_back(); }

  bool share(Storage& source, std::byte* data) override {
    auto* other = dynamic_cast<PooledStorage*>(&source);
    if (other == nullptr || other == this) return false;
    if (!other->shared_) {
      other->shared_ = std::allocate_shared<SharedBlock>(PoolAllocator<SharedBlock>(other->pool_.shared_from_this()),
                                                         other->pool_, source.data(), source.bytes());
    }
    give_back();
    shared_ = other->shared_;
    set_data(data);
    return true;
  }

  // Copies even where the others are gone by now: whether they are may depend on the order in which threads run.
  void unshare() override {
    if (!shared_) return;
    std::byte* own = pool_.acquire(bytes());
    std::memcpy(own, data(), bytes());
    shared_.reset();
    set_data(own);
  }

 private:
  void give_back() {
    if (!shared_) pool_.release(data(), bytes());
  }

  BlockPool& pool_;
  std::shared_ptr<SharedBlock> shared_;  // null = the block is this storage's alone
};

using CopyLoop = StridedLoop<2>;

// Calls row(offsets) for all rows, on several threads where there are many.
template <int kOperands, class Row>
void for_rows_at_once(const StridedLoop<kOperands>& loop, const Row& row) {
  for_ranges(loop.rows(), loop.inner_size(),
             [&](std::int64_t first, std::int64_t last) { loop.for_rows(first, last, row); });
}

template <std::size_t kBytes>
void copy_fixed_runs(const CopyLoop& loop, std::byte* dst, const std::byte* src, std::int64_t element) {
  for_rows_at_once(loop, [&](const CopyLoop::Offsets& offset) {
    std::memcpy(dst + offset[0] * element, src + offset[1] * element, kBytes);
  });
}

// A single run, in pieces of 64 bytes.
void copy_run(std::byte* dst, const std::byte* src, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for_ranges((bytes + kLine - 1) / kLine, kLine / 4, [&](std::int64_t first, std::int64_t last) {
    std::memcpy(dst + first * kLine, src + first * kLine,
                static_cast<std::size_t>(std::min(bytes, last * kLine) - first * kLine));
  });
}

// Both sides have unit inner stride: every row is one run of bytes. Short runs (one head of one token) are common, and
// a copy of known length is several times faster than a call.
void copy_runs(const CopyLoop& loop, std::byte* dst, const std::byte* src, std::int64_t element) {
  const auto run = static_cast<std::size_t>(loop.inner_size() * element);
  switch (run) {
    case 1: return copy_fixed_runs<1>(loop, dst, src, element);
    case 2: return copy_fixed_runs<2>(loop, dst, src, element);
    case 4: return copy_fixed_runs<4>(loop, dst, src, element);
    case 8: return copy_fixed_runs<8>(loop, dst, src, element);
    case 16: return copy_fixed_runs<16>(loop, dst, src, element);
    case 32: return copy_fixed_runs<32>(loop, dst, src, element);
    case 64: return copy_fixed_runs<64>(loop, dst, src, element);
    case 128: return copy_fixed_runs<128>(loop, dst, src, element);
    default:
      if (loop.rows() == 1) return copy_run(dst, src, loop.inner_size() * element);
      for_rows_at_once(loop, [&](const CopyLoop::Offsets& offset) {
        std::memcpy(dst + offset[0] * element, src + offset[1] * element, run);
      });
  }
}

// Elements of one size whatever their type.
template <std::size_t kBytes>
struct Opaque {
  std::array<std::byte, kBytes> bytes;
};

// A transposition of the inner two axes in square tiles, so that both sides touch each cache line once.
template <class T>
void copy_plane(const CopyLoop& loop, T* dst, const T* src) {
  constexpr std::int64_t kTile = 32;
  const std::int64_t inner = loop.size(0), outer = loop.size(1);
  for (std::int64_t i0 = 0; i0 < outer; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 < inner; j0 += kTile) {
      for (std::int64_t i = i0; i < std::min(outer, i0 + kTile); ++i) {
        T* row = dst + i * loop.stride(0, 1);
        const T* column = src + i * loop.stride(1, 1);
        for (std::int64_t j = j0; j < std::min(inner, j0 + kTile); ++j) {
          row[j * loop.stride(0, 0)] = column[j * loop.stride(1, 0)];
        }
      }
    }
  }
}

template <class T>
void copy_elements(CopyLoop loop, std::byte* dst_bytes, const std::byte* src_bytes) {
  T* dst = reinterpret_cast<T*>(dst_bytes);
  const T* src = reinterpret_cast<const T*>(src_bytes);
  for (int axis = 1; axis < loop.rank(); ++axis) {
    if (loop.stride(1, axis) != 1) continue;
    loop.swap_axes(1, axis);
    for_ranges(loop.planes(), loop.size(0) * loop.size(1), [&](std::int64_t first, std::int64_t last) {
      loop.for_planes(first, last,
                      [&](const CopyLoop::Offsets& offset) { copy_plane(loop, dst + offset[0], src + offset[1]); });
    });
    return;
  }
  const std::int64_t count = loop.inner_size(), dst_stride = loop.inner_stride(0), src_stride = loop.inner_stride(1);
  for_rows_at_once(loop, [&](const CopyLoop::Offsets& offset) {
    T* to = dst + offset[0];
    const T* from = src + offset[1];
    for (std::int64_t i = 0; i < count; ++i) to[i * dst_stride] = from[i * src_stride];
  });
}

// Element types of unusual size.
void copy_odd_elements(const CopyLoop& loop, std::byte* dst, const std::byte* src, std::int64_t element) {
  loop.for_all_rows([&](const CopyLoop::Offsets& offset) {
    for (std::int64_t i = 0; i < loop.inner_size(); ++i) {
      std::memcpy(dst + (offset[0] + i * loop.inner_stride(0)) * element,
                  src + (offset[1] + i * loop.inner_stride(1)) * element, static_cast<std::size_t>(element));
    }
  });
}

void copy_same_type(const Tensor& dst, const Tensor& src) {
  const CopyLoop loop(dst.shape(), {&dst.strides(), &src.strides()});
  const std::size_t element = dst.dtype().size();
  const bool unit_strides = loop.inner_stride(0) == 1 && loop.inner_stride(1) == 1;
  if (unit_strides || dst.numel() == 1) {
    return copy_runs(loop, dst.data(), src.data(), static_cast<std::int64_t>(element));
  }
  switch (element) {
    case 1: return copy_elements<Opaque<1>>(loop, dst.data(), src.data());
    case 2: return copy_elements<Opaque<2>>(loop, dst.data(), src.data());
    case 4: return copy_elements<Opaque<4>>(loop, dst.data(), src.data());
    case 8: return copy_elements<Opaque<8>>(loop, dst.data(), src.data());
    case 16: return copy_elements<Opaque<16>>(loop, dst.data(), src.data());
    default: return copy_odd_elements(loop, dst.data(), src.data(), static_cast<std::int64_t>(element));
  }
}

template <class To, class From>
void convert_elements(const Tensor& dst, const Tensor& src) {
  const CopyLoop loop(dst.shape(), {&dst.strides(), &src.strides()});
  const std::int64_t count = loop.inner_size(), dst_stride = loop.inner_stride(0), src_stride = loop.inner_stride(1);
  To* dst_data = dst.data_as<To>();
  const From* src_data = src.data_as<From>();
  if (loop.rows() == 1 && dst_stride == 1 && src_stride == 1) {
    return for_ranges(count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) dst_data[i] = convert_element<To>(src_data[i]);
    });
  }
  for_rows_at_once(loop, [&](const CopyLoop::Offsets& offset) {
    To* to = dst_data + offset[0];
    const From* from = src_data + offset[1];
    if (dst_stride == 1 && src_stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = convert_element<To>(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * dst_stride] = convert_element<To>(from[i * src_stride]);
    }
  });
}

[[noreturn]] void refuse_arithmetic(std::string_view operation) {
  fail(ErrorKind::unsupported_error, "{}: arithmetic is not available on the host device", operation);
}

}  // namespace

StoragePointer HostDevice::do_allocate(std::size_t bytes) {
  return std::allocate_shared<PooledStorage>(PoolAllocator<PooledStorage>(pool_), *this, *pool_, bytes);
}

void HostDevice::do_upload(const Tensor& dst, std::span<const std::byte> bytes) {
  copy_run(dst.data(), bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

void HostDevice::do_download(std::span<std::byte> bytes, const Tensor& src) {
  copy_run(bytes.data(), src.data(), static_cast<std::int64_t>(bytes.size()));
}

void HostDevice::do_copy(const Tensor& dst, const Tensor& src) {
  if (dst.dtype() == src.dtype()) return copy_same_type(dst, src);
  visit_plain_dtype(src.dtype(), "conversion", [&](auto from) {
    visit_plain_dtype(dst.dtype(), "conversion", [&](auto to) {
      convert_elements<typename decltype(to)::type, typename decltype(from)::type>(dst, src);
    });
  });
}

void HostDevice::do_fill(const Tensor& dst, double value) {
  visit_plain_dtype(dst.dtype(), "fill", [&](auto type) {
    using T = typename decltype(type)::type;
    const T element = convert_element<T>(value);
    const StridedLoop<1> loop(dst.shape(), {&dst.strides()});
    T* data = dst.data_as<T>();
    loop.for_all_rows([&](const StridedLoop<1>::Offsets& offset) {
      T* row = data + offset[0];
      if (loop.inner_stride(0) == 1) {
        std::fill_n(row, loop.inner_size(), element);
      } else {
        for (std::int64_t i = 0; i < loop.inner_size(); ++i) row[i * loop.inner_stride(0)] = element;
      }
    });
  });
}

void HostDevice::do_poison(const Tensor& dst) {
  const StridedLoop<1> loop(dst.shape(), {&dst.strides()});
  const auto element = static_cast<std::int64_t>(dst.dtype().size());
  if (loop.rows() == 1 && loop.inner_stride(0) == 1) {
    return for_ranges(loop.inner_size(), 1, [&](std::int64_t first, std::int64_t last) {
      std::memset(dst.data() + first * element, 0xFF, static_cast<std::size_t>((last - first) * element));
    });
  }
  for_rows_at_once(loop, [&](const StridedLoop<1>::Offsets& offset) {
    std::byte* row = dst.data() + offset[0] * element;
    for (std::int64_t i = 0; i < loop.inner_size(); ++i) {
      std::memset(row + i * loop.inner_stride(0) * element, 0xFF, static_cast<std::size_t>(element));
    }
  });
}

void HostDevice::do_gather_rows(const Tensor& dst, const Tensor& table, const Tensor& index) {
  const std::int64_t rows = table.size(0);
  const std::int64_t* indices = index.data_as<std::int64_t>();
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    SHARDPROOF_CHECK(indices[i] >= 0 && indices[i] < rows, shape_error,
                     "gather_rows: index {} at position {} does not lie within the {} rows of {}", indices[i], i, rows,
                     table.text());
  }
  const std::size_t row_bytes = dst.bytes() / static_cast<std::size_t>(dst.size(0));
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    std::memcpy(dst.data() + static_cast<std::size_t>(i) * row_bytes,
                table.data() + static_cast<std::size_t>(indices[i]) * row_bytes, row_bytes);
  }
}

void HostDevice::do_unary(UnaryOp op, const Tensor&, const Tensor&) { refuse_arithmetic(op_name(op)); }
void HostDevice::do_binary(BinaryOp op, const Tensor&, const Tensor&, const Tensor&) { refuse_arithmetic(op_name(op)); }
void HostDevice::do_matmul(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { refuse_arithmetic("matmul"); }
void HostDevice::do_reduce(ReduceOp op, const Tensor&, const Tensor&) { refuse_arithmetic(op_name(op)); }
void HostDevice::do_attention(const AttentionOutput&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              double) {
  refuse_arithmetic("attention");
}

}  // namespace shardproof
