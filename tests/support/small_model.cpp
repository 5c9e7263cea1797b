#include "tests/support/small_model.h"

#include <cmath>
#include <vector>

#include "core/ops.h"
#include "core/random.h"
#include "core/tables.h"

namespace shardproof::test {
namespace {

constexpr double kEps = 1e-6;

struct Names {
  Name hidden_states{"hidden_states"};
  Name encoder_hidden_states{"encoder_hidden_states"};
  Name context{"context"};
  Name timestep{"timestep"};
  Name text_mask{"text_mask"};
  Name img_ids{"img_ids"};
  Name txt_ids{"txt_ids"};
  Name controlnet_samples{"controlnet_samples"};
  Name attention_mask{"attention_mask"};
  Name cosine{"cosine"};
  Name sine{"sine"};
};
const Names& names() {
  static const Names kNames;
  return kNames;
}

Tensor call_linear(Module& linear, const Tensor& x) { return static_cast<Linear&>(linear)(x); }

Tensor by_heads(const Tensor& x) {
  return ops::reshape(x, {x.size(0), x.size(1), x.size(2) / kSmallHeadWidth, kSmallHeadWidth});
}
Tensor all_heads(const Tensor& x) { return ops::reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)}); }

// Attention of [text, image] against itself, or of the image against the context.
class SmallAttention final : public Module, public AttentionSlot {
 public:
  SmallAttention(std::int64_t channels, Placement keys) : Module("SmallAttention"), keys_(keys) {
    to_q_ = &add_child<Linear>("to_q", channels, channels);
    to_k_ = &add_child<Linear>("to_k", channels, channels);
    to_v_ = &add_child<Linear>("to_v", channels, channels);
    to_out_ = &add_child<Linear>("to_out", channels, channels);
  }
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{names().hidden_states, ArgumentKind::value},
                                              {names().encoder_hidden_states, ArgumentKind::value},
                                              {names().attention_mask, ArgumentKind::mask},
                                              {names().cosine, ArgumentKind::value},
                                              {names().sine, ArgumentKind::value}};
    return kArguments;
  }
  Outputs forward(Arguments& arguments) override {
    const Tensor x = arguments.tensor(names().hidden_states);
    const Tensor other = arguments.optional_tensor(names().encoder_hidden_states);
    const Tensor source = other.defined() ? other : x;
    Tensor q = by_heads(call_linear(*to_q_, x));
    Tensor k = by_heads(call_linear(*to_k_, source));
    const Tensor cosine = arguments.optional_tensor(names().cosine), sine = arguments.optional_tensor(names().sine);
    if (cosine.defined()) {
      q = ops::rotary_interleaved(q, cosine, sine);
      k = ops::rotary_interleaved(k, cosine, sine);
    }
    const AttentionMask mask{.values = arguments.optional_tensor(names().attention_mask)};
    const AttentionResult result =
        attention(q, k, by_heads(call_linear(*to_v_, source)), mask, {.keys = keys_}, context_parallel());
    return call_linear(*to_out_, all_heads(result.out));
  }

 private:
  Placement keys_;
  Module *to_q_, *to_k_, *to_v_, *to_out_;
};

class SmallBlock final : public Module {
 public:
  SmallBlock(std::int64_t channels, Placement context) : Module("SmallBlock") {
    attn_ = &add_child<SmallAttention>("attn", channels, Placement::split);
    cross_attn_ = &add_child<SmallAttention>("cross_attn", channels, context);
    ff_ = &add_child<Linear>("ff", channels, channels);
  }
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {names().hidden_states, ArgumentKind::value}, {names().encoder_hidden_states, ArgumentKind::value},
        {names().context, ArgumentKind::value},       {names().timestep, ArgumentKind::value},
        {names().attention_mask, ArgumentKind::mask}, {names().cosine, ArgumentKind::value},
        {names().sine, ArgumentKind::value}};
    return kArguments;
  }
  // (text, image)
  Outputs forward(Arguments& arguments) override {
    Tensor x = arguments.tensor(names().hidden_states);
    Tensor y = arguments.tensor(names().encoder_hidden_states);
    const std::int64_t text = y.size(1), image = x.size(1);
    const Tensor joined = ops::concat({ops::layer_norm(y, kEps), ops::layer_norm(x, kEps)}, 1);
    const Tensor attended = attn_
                                ->call({{names().hidden_states, joined},
                                        {names().attention_mask, *arguments.find(names().attention_mask)},
                                        {names().cosine, arguments.tensor(names().cosine)},
                                        {names().sine, arguments.tensor(names().sine)}})
                                .tensors.front();
    y = ops::add(y, attended.narrow(1, 0, text));
    x = ops::add(x, attended.narrow(1, text, image));
    const Tensor crossed =
        cross_attn_
            ->call({{names().hidden_states, x}, {names().encoder_hidden_states, arguments.tensor(names().context)}})
            .tensors.front();
    x = ops::add(x, crossed);
    // Per token [B, image, 1], or per item [B, 1, 1].
    const Tensor scale = ops::add(arguments.tensor(names().timestep), 1.0);
    x = ops::add(x, ops::multiply(ops::gelu_tanh(call_linear(*ff_, ops::layer_norm(x, kEps))), scale));
    return Outputs(std::vector<Tensor>{y, x});
  }

 private:
  Module *attn_, *cross_attn_, *ff_;
};

// [text, image] rotary tables from the local coordinates.
std::pair<Tensor, Tensor> rotary_tables(const Tensor& txt_ids, const Tensor& img_ids, const Tensor& like) {
  std::vector<double> positions = ops::to_doubles(txt_ids);
  const std::vector<double> image = ops::to_doubles(img_ids);
  positions.insert(positions.end(), image.begin(), image.end());
  const AngleTable table = tables::rotary_angles64(positions, kSmallHeadWidth, 100.0, TablePrecision::float64);
  return {tables::cosine_on(like.device(), table, like.dtype(), 2),
          tables::sine_on(like.device(), table, like.dtype(), 2)};
}

// bool [B, text] -> [B, text + image], the image kept; none stays none.
Value joint_mask(const Tensor& text_mask, std::int64_t image) {
  if (!text_mask.defined()) return {};
  const Tensor kept = ops::full(text_mask.device(), {text_mask.size(0), image}, kBool, 1.0);
  return ops::concat({text_mask, kept}, 1);
}

HostArray uniform_keep(const Shape& shape, std::uint64_t seed, std::string_view name) {
  HostArray array(shape);
  const RandomStream stream(seed, name);
  for (std::size_t i = 0; i < array.values.size(); ++i) array.values[i] = stream.below(i, 3) > 0 ? 1.0 : 0.0;
  return array;
}

}  // namespace

SmallModel::SmallModel(const SmallModelConfig& config) : Module("SmallModel") {
  const std::int64_t channels = config.heads * kSmallHeadWidth;
  x_embedder_ = &add_child<Linear>("x_embedder", kSmallChannels, channels);
  text_embedder_ = &add_child<Linear>("text_embedder", kSmallChannels, channels);
  context_embedder_ = &add_child<Linear>("context_embedder", kSmallChannels, channels);
  blocks_ = &add_child<ModuleList>("blocks");
  for (std::int64_t i = 0; i < config.layers; ++i) blocks_->append<SmallBlock>(channels, config.context);
  proj_out_ = &add_child<Linear>("proj_out", channels, kSmallChannels);
}

std::span<const ArgumentSpec> SmallModel::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {
      {names().hidden_states, ArgumentKind::value}, {names().encoder_hidden_states, ArgumentKind::value},
      {names().context, ArgumentKind::value},       {names().timestep, ArgumentKind::value},
      {names().text_mask, ArgumentKind::mask},      {names().img_ids, ArgumentKind::coordinate},
      {names().txt_ids, ArgumentKind::coordinate},  {names().controlnet_samples, ArgumentKind::value}};
  return kArguments;
}

Outputs SmallModel::forward(Arguments& arguments) {
  Tensor x = call_linear(*x_embedder_, arguments.tensor(names().hidden_states));
  Tensor y = call_linear(*text_embedder_, arguments.tensor(names().encoder_hidden_states));
  const Tensor context = call_linear(*context_embedder_, arguments.tensor(names().context));
  const auto [cosine, sine] = rotary_tables(arguments.tensor(names().txt_ids), arguments.tensor(names().img_ids), x);
  Tensor timestep = arguments.tensor(names().timestep);
  timestep = timestep.rank() == 1 ? timestep.unsqueeze(1).unsqueeze(2) : timestep.unsqueeze(2);
  const Value mask = joint_mask(arguments.optional_tensor(names().text_mask), x.size(1));
  const std::vector<Tensor> samples = arguments.tensor_list(names().controlnet_samples);
  std::size_t index = 0;
  for (const auto& block : blocks_->children()) {
    const Outputs outputs = block->call({{names().hidden_states, x},
                                         {names().encoder_hidden_states, y},
                                         {names().context, context},
                                         {names().timestep, timestep},
                                         {names().attention_mask, mask},
                                         {names().cosine, cosine},
                                         {names().sine, sine}});
    y = outputs.tensors[0];
    x = outputs.tensors[1];
    if (!samples.empty()) x = ops::add(x, samples[index++ % samples.size()]);
  }
  return call_linear(*proj_out_, ops::layer_norm(x, kEps));
}

ContextParallelPlan small_model_plan(const SmallModelConfig& config) {
  const auto input = [](int dim, int dims) { return ContextParallelInput{.split_dim = dim, .expected_dims = dims}; };
  SplitEntries root{{"hidden_states", input(1, 3)},     {"encoder_hidden_states", input(1, 3)},
                    {"timestep", input(1, 2)},          {"text_mask", input(1, 2)},
                    {"img_ids", input(0, 1)},           {"txt_ids", input(0, 1)},
                    {"controlnet_samples", input(1, 3)}};
  if (config.context == Placement::split) root.emplace_back("context", input(1, 3));
  return {{{"", root}, {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
}

SmallModelWeights::SmallModelWeights(const SmallModelConfig& config, Device& device, DType dtype, std::uint64_t seed)
    : config_(config) {
  SmallModel model(config);
  for_each_parameter(model, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    const Shape& shape = parameter.tensor->shape();
    const double deviation = shape.rank() == 2 ? 1.5 / std::sqrt(static_cast<double>(shape[1])) : 0.5;
    tensors_[path] =
        std::make_shared<const Tensor>(to_device(device, random_array(shape, seed, path, deviation), dtype));
  });
}

std::unique_ptr<SmallModel> SmallModelWeights::make_model() const {
  auto model = std::make_unique<SmallModel>(config_);
  for_each_parameter(*model, [&](const std::string& path, Module& module, const Module::Parameter& parameter) {
    module.assign_parameter(parameter.name, tensors_.at(path));
  });
  return model;
}

Arguments small_model_inputs(const SmallInputShape& shape, Device& device, HostDevice& host, DType dtype,
                             std::uint64_t seed) {
  const auto value = [&](const Shape& s, Name name) {
    return to_device(device, random_array(s, seed, name.text()), dtype);
  };
  const Shape timestep = shape.timestep_per_token ? Shape{shape.batch, shape.image} : Shape{shape.batch};
  Arguments arguments{
      {names().hidden_states, value({shape.batch, shape.image, kSmallChannels}, names().hidden_states)},
      {names().encoder_hidden_states, value({shape.batch, shape.text, kSmallChannels}, names().encoder_hidden_states)},
      {names().context, value({shape.batch, shape.context, kSmallChannels}, names().context)},
      {names().timestep, value(timestep, names().timestep)},
      {names().img_ids, to_device(host, random_array({shape.image}, seed, "img_ids", 5.0), kFloat64)},
      {names().txt_ids, to_device(host, random_array({shape.text}, seed, "txt_ids", 5.0), kFloat64)}};
  if (shape.has_text_mask) {
    HostArray keep = uniform_keep({shape.batch, shape.text}, seed, "text_mask");
    keep.at({shape.batch - 1, 0}) = 1.0;
    arguments.set(names().text_mask, to_device(device, keep, kBool));
  }
  return arguments;
}

}  // namespace shardproof::test
