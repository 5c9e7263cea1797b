// Layers that several models share, against their formulas written out over plain arrays. That whole models are right
// is shown by the oracle tests.
#include "models/layers.h"

#include <cmath>
#include <numbers>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "models/attention_layers.h"
#include "models/state.h"
#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::HostArray;
using test::random_array;
using test::thrown_by;
using ::testing::HasSubstr;

class Layers : public ::testing::Test {
 protected:
  // A layer with weights drawn by their names.
  template <class Layer, class... Arguments_>
  std::unique_ptr<Layer> make(Arguments_&&... arguments) {
    auto layer = std::make_unique<Layer>(std::forward<Arguments_>(arguments)...);
    assign_state(*layer, random_state(*layer, 5, {.device = device_.get(), .dtype = kFloat64}));
    return layer;
  }
  Tensor on_device(const HostArray& array) { return test::to_device(*device_, array, kFloat64); }
  static HostArray weight_of(Module& module, std::string_view path, std::size_t index = 0) {
    return test::to_host(*module.find_module(path)->parameters()[index].tensor);
  }

  std::unique_ptr<Device> device_ = make_reference_device(kFloat64);
};

TEST_F(Layers, AffineLayerNormMultipliesAndAddsAfterNormalising) {
  const auto norm = make<AffineLayerNorm>(5, 0.25);
  const HostArray x = random_array({2, 5}, 1, "x"), y = test::to_host((*norm)(on_device(x)));
  const HostArray weight = weight_of(*norm, ""), bias = weight_of(*norm, "", 1);
  for (std::int64_t row = 0; row < 2; ++row) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < 5; ++i) mean += x.at({row, i}) / 5;
    for (std::int64_t i = 0; i < 5; ++i) variance += (x.at({row, i}) - mean) * (x.at({row, i}) - mean) / 5;
    for (std::int64_t i = 0; i < 5; ++i) {
      const double normed = (x.at({row, i}) - mean) / std::sqrt(variance + 0.25);
      EXPECT_NEAR(y.at({row, i}), normed * weight.at({i}) + bias.at({i}), 1e-14);
    }
  }
}

TEST_F(Layers, RmsNormMayHaveNoWeight) {
  RmsNorm norm(5, 0.25, RmsNorm::Weight::absent);
  EXPECT_TRUE(norm.parameters().empty());
  const Tensor x = on_device(random_array({2, 5}, 1, "x"));
  EXPECT_TRUE(test::bitwise_equal(norm(x), ops::rms_norm(x, Tensor(), 0.25)));
}

double activated(FeedForward::Kind kind, double h, double gate) {
  switch (kind) {
    case FeedForward::Kind::gelu: return 0.5 * h * (1 + std::erf(h / std::numbers::sqrt2));
    case FeedForward::Kind::gelu_tanh:
      return 0.5 * h * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (h + 0.044715 * h * h * h)));
    case FeedForward::Kind::swiglu: return h * gate / (1 + std::exp(-gate));
  }
  return 0;
}

TEST_F(Layers, FeedForwardHasItsKindsOfActivation) {
  using Kind = FeedForward::Kind;
  for (const Kind kind : {Kind::gelu_tanh, Kind::gelu, Kind::swiglu}) {
    const auto ff = make<FeedForward>(FeedForward::Options{
        .in_features = 3, .inner = 4, .out_features = 2, .kind = kind, .bias = Linear::Bias::absent});
    const HostArray x = random_array({1, 3}, 2, "x", 2.0), y = test::to_host((*ff)(on_device(x)));
    const HostArray in = weight_of(*ff, "net.0.proj"), out = weight_of(*ff, "net.2");
    EXPECT_EQ(in.shape, (Shape{kind == Kind::swiglu ? 8 : 4, 3}));
    const auto projected = [&](std::int64_t row) {
      return in.at({row, 0}) * x.at({0, 0}) + in.at({row, 1}) * x.at({0, 1}) + in.at({row, 2}) * x.at({0, 2});
    };
    for (std::int64_t i = 0; i < 2; ++i) {
      double expected = 0;
      for (std::int64_t k = 0; k < 4; ++k)
        expected += out.at({i, k}) * activated(kind, projected(k), kind == Kind::swiglu ? projected(4 + k) : 0.0);
      EXPECT_NEAR(y.at({0, i}), expected, 1e-14);
    }
  }
}

TEST_F(Layers, PatchEmbeddingIsAConvolutionWhoseStrideIsItsKernel) {
  const auto embedding = make<PatchEmbedding>(2, 3, Extents{1, 2, 3});
  const HostArray x = random_array({2, 2, 2, 4, 6}, 3, "x");
  const Tensor out = (*embedding)(on_device(x));
  ASSERT_EQ(out.shape(), (Shape{2, 3, 2, 2, 2}));
  const HostArray y = test::to_host(out), tokens = test::to_host(tokens_of_grid(out));
  const HostArray weight = weight_of(*embedding, ""), bias = weight_of(*embedding, "", 1);
  const auto expected = [&](std::int64_t b, std::int64_t o, std::int64_t f, std::int64_t row, std::int64_t column) {
    double sum = bias.at({o});
    for (std::int64_t c = 0; c < 2; ++c) {
      for (std::int64_t i = 0; i < 2; ++i) {
        for (std::int64_t j = 0; j < 3; ++j)
          sum += weight.at({o, c, 0, i, j}) * x.at({b, c, f, 2 * row + i, 3 * column + j});
      }
    }
    return sum;
  };
  for (std::int64_t token = 0; token < 8; ++token) {
    const std::int64_t f = token / 4, row = token / 2 % 2, column = token % 2;
    for (std::int64_t o = 0; o < 3; ++o) {
      EXPECT_NEAR(y.at({1, o, f, row, column}), expected(1, o, f, row, column), 1e-14);
      EXPECT_EQ(tokens.at({1, token, o}), y.at({1, o, f, row, column}));
    }
  }
}

TEST_F(Layers, PatchEmbeddingRefusesExtentsThatItsKernelDoesNotDivide) {
  const auto embedding = make<PatchEmbedding>(2, 3, Extents{1, 2, 2});
  const auto error = thrown_by([&] { (*embedding)(on_device(HostArray({1, 2, 2, 4, 5}))); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("float64 [1, 2, 2, 4, 5] must be [batch, 2, multiples of 1, 2 and 2]"));
}

TEST_F(Layers, GridOfPatchesPutsEveryPatchBackInItsPlace) {
  const Extents grid{2, 1, 2}, kernel{1, 2, 3};
  const HostArray tokens = test::identifiers({1, 4, 12});
  const HostArray video = test::to_host(grid_of_patches(on_device(tokens), grid, kernel));
  ASSERT_EQ(video.shape, (Shape{1, 2, 2, 2, 6}));
  for (std::int64_t token = 0; token < 4; ++token) {
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        for (std::int64_t c = 0; c < 2; ++c)
          EXPECT_EQ(video.at({0, c, token / 2, i, token % 2 * 3 + j}), tokens.at({0, token, (i * 3 + j) * 2 + c}));
      }
    }
  }
}

TEST_F(Layers, ModulationsFromATableAreItsRowsPlusTheirEmbedding) {
  const HostArray table = random_array({1, 2, 3}, 4, "table"), embedded = random_array({2, 4, 2, 3}, 4, "embedded");
  const std::vector<Tensor> rows = modulations_from_table(on_device(table), on_device(embedded));
  ASSERT_EQ(rows.size(), 2U);
  for (std::int64_t row = 0; row < 2; ++row) {
    const HostArray ours = test::to_host(rows[static_cast<std::size_t>(row)]);
    ASSERT_EQ(ours.shape, (Shape{2, 4, 3}));
    EXPECT_EQ(ours.at({1, 3, 2}), table.at({0, row, 2}) + embedded.at({1, 3, row, 2}));
  }
}

}  // namespace
}  // namespace shardproof
