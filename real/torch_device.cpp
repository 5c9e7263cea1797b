// The module with LibTorch, which with real/torch_attention.cpp alone sees its headers. The same source serves the CPU
// and CUDA, as everything goes through ATen's dispatch and c10's interfaces of a device type, so it compiles against a
// CPU build of torch too.
//
// Tensors are views of our storage (at::from_blob), whose memory c10's allocator of the place gives: on CUDA that is
// the caching allocator and the current stream. Simulated ranks are fibers that share threads, so nothing that belongs
// to a thread may outlive a call: every call enters its guards and leaves them.
//
// The module holds the few files of core that it needs once more, hidden (real/CMakeLists.txt). That is harmless: they
// keep no state but the names of the plain types, and exceptions are caught by the name of their type, which is the
// same on both sides.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <type_traits>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "core/error.h"
#include "real/torch_attention_body.h"
#include "real/torch_module.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

c10::ScalarType scalar_type(DType dtype) {
  if (dtype == kFloat64) return at::kDouble;
  if (dtype == kFloat32) return at::kFloat;
  if (dtype == kBFloat16) return at::kBFloat16;
  if (dtype == kFloat16) return at::kHalf;
  if (dtype == kInt64) return at::kLong;
  return at::kByte;  // bool: 0, 1, or 0xFF for poison
}

// Integers of the same size: what moves bits without a look at them.
c10::ScalarType bits_type(DType dtype) {
  switch (dtype.size()) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

bool is_sixteen_bits(DType dtype) { return dtype == kBFloat16 || dtype == kFloat16; }

// One thread for what torch does inside the scope: its sums are cut by the number of threads, and so are their bits.
// OpenMP's setting is one for torch and for our own devices, hence put back.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    (void)at::get_num_threads();  // lets torch set up its threads for the calling thread, which it does once
    omp_set_num_threads(1);
  }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

class TorchStorage final : public Storage {
 public:
  TorchStorage(Device& device, c10::DataPtr memory, std::size_t bytes)
      : Storage(device, static_cast<std::byte*>(memory.get()), bytes), memory_(std::move(memory)) {}

 private:
  c10::DataPtr memory_;
};

// Rounds float64 to float32 such that a second rounding to a 16-bit type gives what one rounding would: towards zero,
// with the last bit set where something was lost ("round to odd").
at::Tensor rounded_to_odd(const at::Tensor& x) {
  const at::Tensor nearest = x.to(at::kFloat), back = nearest.to(at::kDouble);
  const at::Tensor is_inexact = back.ne(x).logical_and(x.eq(x));
  const at::Tensor bits = nearest.view(at::kInt);
  const at::Tensor truncated = bits.sub(back.abs().gt(x.abs()).to(at::kInt));
  return at::where(is_inexact, truncated.bitwise_or(1), bits).view(at::kFloat);
}

// The numbers of `src`, a tensor of bytes if they are bool, as `to`, with one rounding.
at::Tensor converted(const at::Tensor& src, DType from, DType to) {
  if (from == kBool) {
    const at::Tensor numbers = src.to(at::kFloat).masked_fill(src.gt(1), std::numeric_limits<double>::quiet_NaN());
    return numbers.to(scalar_type(to));
  }
  if (to == kBool) return src.ne(0).to(at::kByte);
  if (is_sixteen_bits(to) && from == kInt64) return rounded_to_odd(src.to(at::kDouble)).to(scalar_type(to));
  if (is_sixteen_bits(to) && from == kFloat64) return rounded_to_odd(src).to(scalar_type(to));
  return src.to(scalar_type(to));
}

class TorchDevice final : public Device {
 public:
  explicit TorchDevice(const c10::Device& place)
      : place_(place), allocator_(*c10::GetAllocator(place.type())), place_functions_(place.type()) {}

 private:
  std::string_view do_name() const override { return place_.is_cpu() ? "torch" : "cuda"; }
  bool do_supports(DType dtype) const override {
    constexpr std::array kTypes{kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kBool};
    return std::find(kTypes.begin(), kTypes.end(), dtype) != kTypes.end();
  }

  StoragePointer do_allocate(std::size_t bytes) override {
    try {
      const c10::OptionalDeviceGuard place(guarded_place());
      return std::make_shared<TorchStorage>(*this, allocator_.allocate(bytes), bytes);
    } catch (const c10::Error& error) {
      fail(ErrorKind::shape_error, "device '{}' has no {} bytes for a tensor: {}", name(), bytes,
           error.what_without_backtrace());
    }
  }
  void do_upload(const Tensor& dst, std::span<const std::byte> bytes) override {
    call("upload", [&] {
      const at::Tensor source = host_bytes(const_cast<std::byte*>(bytes.data()), bytes.size());
      flat_bytes(dst).copy_(source);
    });
  }
  void do_download(std::span<std::byte> bytes, const Tensor& src) override {
    call("download", [&] { host_bytes(bytes.data(), bytes.size()).copy_(flat_bytes(src)); });
  }
  void do_copy(const Tensor& dst, const Tensor& src) override {
    call("copy", [&] {
      if (dst.dtype() == src.dtype()) {
        bits_of(dst).copy_(bits_of(src));
      } else {
        view_of(dst).copy_(converted(view_of(src), src.dtype(), dst.dtype()));
      }
    });
  }
  void do_fill(const Tensor& dst, double value) override {
    call("fill", [&] {
      const at::Tensor number = at::full({}, value, at::TensorOptions(at::kDouble).device(place_));
      view_of(dst).copy_(converted(number, kFloat64, dst.dtype()));
    });
  }
  void do_poison(const Tensor& dst) override {
    call("poison", [&] { bits_of(dst).fill_(dst.dtype().size() == 1 ? 0xFF : -1); });
  }
  void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) override {
    call(op_name(op), [&] {
      apply(dst, std::array{&x}, [&](at::Tensor& out, const auto& in) { unary(op, out, in[0], x.dtype()); });
    });
  }
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override {
    SHARDPROOF_CHECK(x.dtype().is_value(), type_error, "{} is not defined for {}", op_name(op), x.text());
    call(op_name(op), [&] {
      apply(dst, std::array{&x, &y}, [&](at::Tensor& out, const auto& in) { binary(op, out, in[0], in[1]); });
    });
  }
  void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) override;
  void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) override;
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override;
  void do_gather_rows(const Tensor& dst, const Tensor& table, const Tensor& index) override;
  void do_synchronize() override {
    if (place_.is_cpu()) return;
    call("synchronize", [&] { place_functions_.synchronizeStream(place_functions_.getStream(place_)); });
  }

  // Runs `body` under the guards of one call, and turns torch's exceptions into ours.
  template <class Body>
  std::invoke_result_t<Body> call(std::string_view operation, const Body& body) const {
    try {
      const c10::InferenceMode inference;
      const c10::OptionalDeviceGuard place(guarded_place());
      const OneThread threads;
      return body();
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      fail(ErrorKind::internal_error, "{} on device '{}': LibTorch: {}", operation, name(),
           error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(ErrorKind::internal_error, "{} on device '{}': LibTorch: {}", operation, name(), error.what());
    }
  }

  // The GPU that has to be the current one; none on the CPU.
  std::optional<c10::Device> guarded_place() const { return place_.is_cpu() ? std::nullopt : std::optional(place_); }

  at::Tensor blob(const Tensor& x, c10::ScalarType type) const {
    std::array<std::int64_t, kMaxRank> sizes{}, strides{};
    const auto rank = static_cast<std::size_t>(x.rank());
    std::copy(x.shape().begin(), x.shape().end(), sizes.begin());
    std::copy(x.strides().begin(), x.strides().end(), strides.begin());
    return at::for_blob(x.data(), at::IntArrayRef(sizes.data(), rank))
        .strides(at::IntArrayRef(strides.data(), rank))
        .options(at::TensorOptions(type).device(place_))
        .target_device(place_)
        .make_tensor();
  }
  at::Tensor view_of(const Tensor& x) const { return blob(x, scalar_type(x.dtype())); }
  at::Tensor bits_of(const Tensor& x) const { return blob(x, bits_type(x.dtype())); }
  // Of a contiguous tensor.
  at::Tensor flat_bytes(const Tensor& x) const {
    return at::for_blob(x.data(), static_cast<std::int64_t>(x.bytes()))
        .options(at::TensorOptions(at::kByte).device(place_))
        .target_device(place_)
        .make_tensor();
  }
  static at::Tensor host_bytes(std::byte* data, std::size_t bytes) {
    return at::from_blob(data, static_cast<std::int64_t>(bytes), at::TensorOptions(at::kByte));
  }

  // Calls function(out, operands) for element-wise work, with out and the operands of one shape. On the CPU ATen has
  // two forms of a function, one for whole vectors and one for the rest of a row, which differ in their last bits, so
  // that a value would depend on its position: there, operands are lines of whole vectors.
  template <std::size_t kOperands, class Function>
  void apply(const Tensor& dst, const std::array<const Tensor*, kOperands>& operands, const Function& function) const {
    constexpr std::int64_t kWhole = 64;  // at least twice the elements of any vector
    std::array<at::Tensor, kOperands> in;
    at::Tensor out = view_of(dst);
    if (!place_.is_cpu()) {
      for (std::size_t i = 0; i < kOperands; ++i) in[i] = view_of(*operands[i]);
      return function(out, in);
    }
    const std::int64_t count = dst.numel(), padded = (count + kWhole - 1) / kWhole * kWhole;
    for (std::size_t i = 0; i < kOperands; ++i) {
      const at::Tensor values = view_of(*operands[i]);
      if (padded == count && operands[i]->is_contiguous()) {
        in[i] = values.view({count});
        continue;
      }
      in[i] = at::empty({padded}, values.options());
      in[i].narrow(0, count, padded - count).zero_();
      in[i].narrow(0, 0, count).view(values.sizes()).copy_(values);
    }
    if (padded == count) {
      at::Tensor line = out.view({count});
      return function(line, in);
    }
    at::Tensor line = at::empty({padded}, out.options());
    function(line, in);
    out.view({count}).copy_(line.narrow(0, 0, count));
  }

  static void unary(UnaryOp op, at::Tensor& out, const at::Tensor& x, DType dtype);
  static void binary(BinaryOp op, at::Tensor& out, const at::Tensor& x, const at::Tensor& y);

  c10::Device place_;
  c10::Allocator& allocator_;
  c10::impl::VirtualGuardImpl place_functions_;
};

double largest_finite(DType dtype) {
  if (dtype == kFloat64) return std::numeric_limits<double>::max();
  if (dtype == kFloat32) return static_cast<double>(std::numeric_limits<float>::max());
  return dtype == kBFloat16 ? 0x1.FEp127 : 65504.0;
}

void TorchDevice::unary(UnaryOp op, at::Tensor& out, const at::Tensor& x, DType dtype) {
  switch (op) {
    case UnaryOp::silu: at::silu_out(out, x); return;
    case UnaryOp::gelu: at::gelu_out(out, x, "none"); return;
    case UnaryOp::gelu_tanh: at::gelu_out(out, x, "tanh"); return;
    case UnaryOp::sigmoid: at::sigmoid_out(out, x); return;
    case UnaryOp::tanh: at::tanh_out(out, x); return;
    case UnaryOp::rsqrt: at::rsqrt_out(out, x); return;
    case UnaryOp::clamp_finite: at::clamp_out(out, x, -largest_finite(dtype), largest_finite(dtype)); return;
  }
}

void TorchDevice::binary(BinaryOp op, at::Tensor& out, const at::Tensor& x, const at::Tensor& y) {
  switch (op) {
    case BinaryOp::add: at::add_out(out, x, y); return;
    case BinaryOp::sub: at::sub_out(out, x, y); return;
    case BinaryOp::mul: at::mul_out(out, x, y); return;
    case BinaryOp::div: at::div_out(out, x, y); return;
    case BinaryOp::logaddexp: at::logaddexp_out(out, x, y); return;
    case BinaryOp::lse_weight: {
      const at::Tensor is_nothing = x.eq(-kInfinity).logical_and(y.eq(y));
      out.copy_(at::sigmoid(x.sub(y)).masked_fill(is_nothing, 0));
      return;
    }
  }
}

void TorchDevice::do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  call("matmul", [&] {
    at::Tensor out = view_of(dst);
    at::Tensor left = view_of(x), right = view_of(weight).t();
    at::Tensor added = bias.defined() ? view_of(bias) : at::Tensor();
    // On the CPU ATen rounds 16-bit sums more than once; float32 rounds them once.
    const bool is_widened = place_.is_cpu() && is_sixteen_bits(dst.dtype());
    if (is_widened) {
      left = left.to(at::kFloat);
      right = right.to(at::kFloat);
      if (bias.defined()) added = added.to(at::kFloat);
      const at::Tensor product = bias.defined() ? at::addmm(added, left, right) : at::mm(left, right);
      out.copy_(product);
    } else if (bias.defined()) {
      at::addmm_out(out, added, left, right);
    } else {
      at::mm_out(out, left, right);
    }
  });
}

void TorchDevice::do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) {
  call(op_name(op), [&] {
    const at::Tensor rows = view_of(x).contiguous();  // the order of a sum follows the strides
    // 16-bit types are added in float32 and rounded once, behind the division.
    const bool is_sixteen = is_sixteen_bits(x.dtype());
    at::Tensor sums = at::sum(rows, {-1}, false, is_sixteen ? at::kFloat : rows.scalar_type());
    if (op == ReduceOp::mean) sums.div_(static_cast<double>(x.size(-1)));
    view_of(dst).copy_(sums);
  });
}

void TorchDevice::do_gather_rows(const Tensor& dst, const Tensor& table, const Tensor& index) {
  call("gather_rows", [&] {
    const at::Tensor indices = view_of(index), on_host = indices.cpu();
    for (std::int64_t i = 0; i < index.numel(); ++i) {
      const std::int64_t row = on_host.const_data_ptr<std::int64_t>()[i];
      SHARDPROOF_CHECK(row >= 0 && row < table.size(0), shape_error,
                       "gather_rows: index {} at position {} does not lie within the {} rows of {}", row, i,
                       table.size(0), table.text());
    }
    if (dst.numel() == 0) return;
    at::Tensor out = bits_of(dst);
    at::index_select_out(out, bits_of(table), 0, indices);
  });
}

void TorchDevice::do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& mask, double scale) {
  call("attention", [&] {
    const auto heads_first = [&](const Tensor& x) { return view_of(x).transpose(1, 2); };
    torch_attention({.q = heads_first(q),
                     .k = heads_first(k),
                     .v = heads_first(v),
                     .mask = mask.defined() ? view_of(mask) : at::Tensor(),
                     .scale = scale,
                     .wide = scalar_type(wide_dtype(q.dtype())),
                     .out = heads_first(dst.out),
                     .lse = view_of(dst.lse).transpose(1, 2)});
  });
}

c10::Device place_for(const TorchDeviceOptions& options) {
  if (options.place == TorchPlace::cpu) return c10::Device(c10::DeviceType::CPU);
  SHARDPROOF_CHECK(
      at::detail::getCUDAHooks().hasCUDA(), unsupported_error,
      "LibTorch {} finds no GPU, or was built without CUDA; expected a machine with a GPU and a CUDA build "
      "of PyTorch",
      TORCH_VERSION);
  const int count = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  SHARDPROOF_CHECK(count > 0, unsupported_error, "LibTorch {} finds no GPU; expected at least one", TORCH_VERSION);
  at::Context& context = at::globalContext();
  context.lazyInitDevice(c10::DeviceType::CUDA);
  // Products of float32 keep all their bits, and those of 16-bit types are added in float32.
  context.setAllowTF32CuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(options.index % count));
}

Device* make_device(const TorchDeviceOptions& options) {
  const OneThread threads;
  at::set_num_threads(1);
  try {
    return new TorchDevice(place_for(options));
  } catch (const c10::Error& error) {
    fail(ErrorKind::unsupported_error, "LibTorch cannot be used: {}", error.what_without_backtrace());
  }
}

// A stream of somebody else's is known to c10 by its address.
void compute_on_stream(const TorchDeviceOptions& options, void* stream) {
  SHARDPROOF_CHECK(options.place == TorchPlace::cuda, usage_error,
                   "a stream to compute on is given for a processor, which has none; expected the place of a GPU");
  try {
    const c10::Device place = place_for(options);
    const c10::impl::VirtualGuardImpl cuda(place.type());
    cuda.exchangeStream(c10::Stream(c10::Stream::UNSAFE, place, reinterpret_cast<c10::StreamId>(stream)));
  } catch (const c10::Error& error) {
    fail(ErrorKind::unsupported_error, "LibTorch cannot be used: {}", error.what_without_backtrace());
  }
}

}  // namespace
}  // namespace shardproof

extern "C" [[gnu::visibility("default")]] const shardproof::TorchModule* shardproof_torch_module() {
  static constexpr shardproof::TorchModule kModule{SHARDPROOF_TORCH_INTERFACE, shardproof::make_device,
                                                   shardproof::compute_on_stream};
  return &kModule;
}
