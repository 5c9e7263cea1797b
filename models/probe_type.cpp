// A small model that is no product of anybody but carries what verification must see and FLUX.1 lacks: joint attention
// with key masks and without normalised queries and keys, cross attention to a replicated stream and to a divided one,
// per-token modulation from timesteps [batch, tokens], and a replicated pooled vector.
#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"
#include "models/config_reader.h"
#include "models/hostile_inputs.h"
#include "models/layers.h"
#include "models/model_type.h"
#include "parallel/attention.h"

namespace shardproof {
namespace {

constexpr double kNormEps = 1e-6;
constexpr std::int64_t kTimestepWidth = 16;
constexpr double kTimestepFactor = 1000.0;
constexpr double kTheta = 100.0;

const Name kContext("context");
const Name kTextMask("encoder_hidden_states_mask");
const Name kIds("ids");
const Name kTextIds("txt_ids");
const Name kModulation("modulation");
const Name kCosine("cosine");
const Name kSine("sine");

struct ProbeConfig {
  std::int64_t channels = 5;
  std::int64_t num_layers = 2;
  std::int64_t attention_head_dim = 8;
  std::int64_t num_attention_heads = 6;
  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

ProbeConfig probe_config_from_json(const Json& json) {
  ConfigReader reader(json);
  ProbeConfig config;
  reader.read("channels", config.channels, 1);
  reader.read("num_layers", config.num_layers, 1, ConfigReader::kLargestLayers);
  reader.read("attention_head_dim", config.attention_head_dim, 2);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.finish();
  SHARDPROOF_CHECK(config.attention_head_dim % 2 == 0, config_error,
                   "{}: key 'attention_head_dim' is {}; it must be even", json.where(), config.attention_head_dim);
  return config;
}

// Attention with its four projections. Keys come from `encoder_hidden_states` where given, else from the queries'
// stream.
class ProbeAttention final : public Module, public AttentionSlot {
 public:
  ProbeAttention(const ProbeConfig& config, Placement keys)
      : Module("ProbeAttention"),
        head_dim_(config.attention_head_dim),
        keys_(keys),
        to_q_(add_child<Linear>("to_q", config.width(), config.width())),
        to_k_(add_child<Linear>("to_k", config.width(), config.width())),
        to_v_(add_child<Linear>("to_v", config.width(), config.width())),
        to_out_(add_child<Linear>("to_out", config.width(), config.width())) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {kTextMask, ArgumentKind::mask},
                                              {kCosine},
                                              {kSine}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor given = arguments.optional_tensor(argument::encoder_hidden_states);
    const Tensor& source = given.defined() ? given : x;
    Tensor q = split_heads(to_q_(x), head_dim_);
    Tensor k = split_heads(to_k_(source), head_dim_);
    const Tensor cosine = arguments.optional_tensor(kCosine);
    if (cosine.defined()) {
      q = ops::rotary_interleaved(q, cosine, arguments.tensor(kSine));
      k = ops::rotary_interleaved(k, cosine, arguments.tensor(kSine));
    }
    const AttentionMask mask{.values = arguments.optional_tensor(kTextMask)};
    const AttentionResult result =
        attention(q, k, split_heads(to_v_(source), head_dim_), mask, {.keys = keys_}, context_parallel());
    return to_out_(join_heads(result.out));
  }

 private:
  std::int64_t head_dim_;
  Placement keys_;
  Linear& to_q_;
  Linear& to_k_;
  Linear& to_v_;
  Linear& to_out_;
};

// Joint attention over [text, image] under the key mask, cross attention of the image to the replicated context and to
// the text (masked), then a feed-forward of the image; all modulated per image token.
class ProbeBlock final : public Module {
 public:
  explicit ProbeBlock(const ProbeConfig& config)
      : Module("ProbeBlock"),
        norm_(add_child<LayerNorm>("norm", kNormEps)),
        joint_(add_child<ProbeAttention>("joint", config, Placement::split)),
        to_context_(add_child<ProbeAttention>("to_context", config, Placement::replicated)),
        to_text_(add_child<ProbeAttention>("to_text", config, Placement::split)),
        ff_(add_child<FeedForward>("ff", config.width())) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {kContext},
                                              {kTextMask, ArgumentKind::mask},
                                              {kModulation},
                                              {kCosine},
                                              {kSine}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    Tensor image = arguments.tensor(argument::hidden_states);
    Tensor text = arguments.tensor(argument::encoder_hidden_states);
    const Tensor text_mask = arguments.optional_tensor(kTextMask);
    const std::vector<Tensor> modulation =
        ops::chunk(arguments.tensor(kModulation), 3, -1);  // scale, shift, gate per token
    const Tensor normed = ops::add(ops::multiply(norm_(image), ops::add(modulation[0], 1.0)), modulation[1]);
    Arguments joint{{argument::hidden_states, ops::concat({text, normed}, 1)},
                    {kCosine, arguments.tensor(kCosine)},
                    {kSine, arguments.tensor(kSine)}};
    if (text_mask.defined()) joint.set(kTextMask, joint_mask(text_mask, image.size(1)));
    const Tensor mixed = joint_.call(std::move(joint)).tensors.front();
    text = ops::add(text, mixed.narrow(1, 0, text.size(1)));
    image = ops::add(image, ops::multiply(modulation[2], mixed.narrow(1, text.size(1), image.size(1))));
    image = ops::add(image, to_context_
                                .call({{argument::hidden_states, norm_(image)},
                                       {argument::encoder_hidden_states, arguments.tensor(kContext)}})
                                .tensors.front());
    Arguments to_text{{argument::hidden_states, norm_(image)}, {argument::encoder_hidden_states, text}};
    if (text_mask.defined()) to_text.set(kTextMask, text_mask);
    image = ops::add(image, to_text_.call(std::move(to_text)).tensors.front());
    image = ops::add(image, ops::multiply(modulation[2], ff_(norm_(image))));
    return Outputs(std::vector<Tensor>{text, image});
  }

 private:
  // [batch, text] -> [batch, text + image] with every image token attended.
  static Tensor joint_mask(const Tensor& text_mask, std::int64_t image_tokens) {
    const Tensor image = ops::full(text_mask.device(), {text_mask.size(0), image_tokens}, text_mask.dtype(),
                                   text_mask.dtype() == kBool ? 1.0 : 0.0);
    return ops::concat({text_mask, image}, 1);
  }

  LayerNorm& norm_;
  ProbeAttention& joint_;
  ProbeAttention& to_context_;
  ProbeAttention& to_text_;
  FeedForward& ff_;
};

class ProbeTransformer final : public Module {
 public:
  ProbeTransformer(const ProbeConfig& config, const ModelContext& context)
      : Module("ProbeTransformer"),
        config_(config),
        context_(context),
        x_embedder_(add_child<Linear>("x_embedder", config.channels, config.width())),
        context_embedder_(add_child<Linear>("context_embedder", config.channels, config.width())),
        modulation_(add_child<Linear>("modulation", kTimestepWidth, 3 * config.width())),
        blocks_(add_child<ModuleList>("blocks")),
        proj_out_(add_child<Linear>("proj_out", config.width(), config.channels)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<ProbeBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {kContext},
                                              {kTextMask, ArgumentKind::mask},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kIds, ArgumentKind::coordinate},
                                              {kTextIds, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    Tensor image = x_embedder_(arguments.tensor(argument::hidden_states));
    Tensor text = context_embedder_(arguments.tensor(argument::encoder_hidden_states));
    const Tensor context = context_embedder_(arguments.tensor(kContext));
    const Tensor modulation = modulation_of(arguments.tensor(argument::timestep), image);
    const Tensor ids = ops::concat({arguments.tensor(kTextIds), arguments.tensor(kIds)}, 0);
    const AngleTable table =
        tables::rotary_angles64(ops::to_doubles(ids), config_.attention_head_dim, kTheta, context_.table_precision);
    const DType table_type = wide_dtype(context_.dtype);
    Arguments fixed{{kContext, context},
                    {kModulation, modulation},
                    {kCosine, tables::cosine_on(*context_.device, table, table_type, 2)},
                    {kSine, tables::sine_on(*context_.device, table, table_type, 2)}};
    const Tensor mask = arguments.optional_tensor(kTextMask);
    if (mask.defined()) fixed.set(kTextMask, mask);
    for (const auto& block : blocks_.children()) {
      Arguments inner = fixed;
      inner.set(argument::hidden_states, image);
      inner.set(argument::encoder_hidden_states, text);
      const Outputs streams = block->call(std::move(inner));
      text = streams.tensors[0];
      image = streams.tensors[1];
    }
    return proj_out_(image);
  }

 private:
  // Timesteps [batch] act on all tokens, [batch, tokens] on each: -> [batch, 1 or tokens, 3 width].
  Tensor modulation_of(const Tensor& timesteps, const Tensor& image) {
    const std::int64_t tokens = timesteps.rank() == 2 ? timesteps.size(1) : 1;
    SHARDPROOF_CHECK(timesteps.rank() >= 1 && timesteps.rank() <= 2 && timesteps.size(0) == image.size(0) &&
                         (timesteps.rank() == 1 || tokens == image.size(1)),
                     shape_error, "timestep {} must be [batch] or [batch, tokens] of the image {}", timesteps.text(),
                     image.text());
    const std::vector<double> scaled = scaled_coordinates(timesteps, kTimestepFactor, context_.table_precision);
    const AngleTable table = tables::sinusoid(scaled, kTimestepWidth, context_.table_precision);
    const Tensor embedded = ops::concat({tables::cosine_on(*context_.device, table, context_.dtype, 1),
                                         tables::sine_on(*context_.device, table, context_.dtype, 1)},
                                        -1);
    const Tensor per_item = modulation_(embedded.view({timesteps.size(0), tokens, kTimestepWidth}));
    return per_item.expand({image.size(0), image.size(1), per_item.size(2)});
  }

  ProbeConfig config_;
  ModelContext context_;
  Linear& x_embedder_;
  Linear& context_embedder_;
  Linear& modulation_;
  ModuleList& blocks_;
  Linear& proj_out_;
};

ContextParallelPlan probe_plan() {
  const auto tokens = ContextParallelInput{.split_dim = 1, .expected_dims = 3};
  const auto per_token = ContextParallelInput{.split_dim = 1, .expected_dims = 2};
  const auto ids = ContextParallelInput{.split_dim = 0, .expected_dims = 1};
  return {{{"", SplitEntries{{"hidden_states", tokens},
                             {"encoder_hidden_states", tokens},
                             {"encoder_hidden_states_mask", per_token},
                             {"timestep", per_token},
                             {"ids", ids},
                             {"txt_ids", ids}}},
           {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
}

enum class Timesteps : std::uint8_t { per_item, per_token };

struct ProbeSizes {
  std::int64_t batch, text, image, context;
};

ModelCase probe_case(const std::string& name, std::uint64_t seed, Device& host, ProbeSizes sizes, Masking masking,
                     Timesteps timesteps) {
  constexpr std::int64_t kChannels = 5;
  const auto draw = [&](const std::string& argument, const Shape& shape, double deviation = 2.0) {
    return random_input(host, seed, name + "/" + argument, shape, deviation);
  };
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {sizes.batch, sizes.image, kChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {sizes.batch, sizes.text, kChannels}));
  arguments.set("context", draw("context", {sizes.batch, sizes.context, kChannels}));
  if (masking != Masking::none)
    arguments.set("encoder_hidden_states_mask", random_key_mask(host, seed, name, sizes.batch, sizes.text, masking));
  arguments.set("timestep", timesteps == Timesteps::per_token ? draw("timestep", {sizes.batch, sizes.image}, 0.01)
                                                              : draw("timestep", {sizes.batch}, 0.01));
  arguments.set("ids", draw("ids", {sizes.image}, 5.0));
  arguments.set("txt_ids", draw("txt_ids", {sizes.text}, 5.0));
  return result;
}

std::vector<ModelCase> probe_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      probe_case("even", seed, host, {2, 12, 24, 7}, Masking::none, Timesteps::per_token),
      probe_case("even_masked", seed, host, {2, 12, 24, 7}, Masking::keys, Timesteps::per_token),
      probe_case("uneven_masked", seed, host, {2, 7, 13, 5}, Masking::keys, Timesteps::per_token),
      probe_case("whole_shard_masked", seed, host, {2, 12, 12, 3}, Masking::whole_shard, Timesteps::per_item),
  };
}

Json probe_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "ProbeTransformer");
  return config;
}

// The keys of its cross attention are one more than those of the text.
ModelCase probe_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  return probe_case("sized", seed, host, {size.batch, size.text, size.image, size.text + 1}, masking_of(size),
                    size.has("per_token") ? Timesteps::per_token : Timesteps::per_item);
}

}  // namespace

ModelType probe_model_type() {
  ModelType type;
  type.class_name = "ProbeTransformer";
  type.short_name = "probe";
  type.create = [](const Json& config, const ModelContext& context) -> std::unique_ptr<Module> {
    return std::make_unique<ProbeTransformer>(probe_config_from_json(config), context);
  };
  type.timestep_factor = 1000.0;
  type.plans = [](const Json&) { return ModelPlans{.shipped_cp = probe_plan(), .default_cp = probe_plan()}; };
  type.attention_heads = [](const Json& config) { return probe_config_from_json(config).num_attention_heads; };
  type.hostile_config = probe_hostile_config;
  type.hostile_cases = probe_hostile_cases;
  type.sized_case = probe_sized_case;
  type.features = mask_features("encoder_hidden_states_mask");
  type.features.push_back(per_token_feature("timestep"));
  return type;
}

}  // namespace shardproof
