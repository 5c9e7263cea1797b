#include "models/attention_layers.h"

#include "core/error.h"

namespace shardproof {

ProjectedAttention::Projections ProjectedAttention::add_projections(const ProjectionNames& names) {
  const std::int64_t width = options_.width;
  return {&add_child<RmsNorm>(names.norm_q, options_.head_dim, options_.norm_eps),
          &add_child<RmsNorm>(names.norm_k, options_.head_dim, options_.norm_eps),
          &add_child<Linear>(names.q, width, width, options_.bias),
          &add_child<Linear>(names.k, width, width, options_.bias),
          &add_child<Linear>(names.v, width, width, options_.bias)};
}

ProjectedAttention::QueryKeyValue ProjectedAttention::project(const Projections& projections, const Tensor& x) const {
  const std::int64_t head_dim = options_.head_dim;
  const Tensor q = split_heads((*projections.q)(x), head_dim);
  const Tensor k = split_heads((*projections.k)(x), head_dim);
  const Tensor v = split_heads((*projections.v)(x), head_dim);
  SHARDPROOF_CHECK(q.size(2) == k.size(2) && q.size(2) == v.size(2), shape_error,
                   "module '{}' ({}): '{}' gives {} heads, '{}' {} and '{}' {}; a plan must divide all three or none",
                   path(), class_name(), projections.q->name().text(), q.size(2), projections.k->name().text(),
                   k.size(2), projections.v->name().text(), v.size(2));
  return {(*projections.norm_q)(q), (*projections.norm_k)(k), v};
}

Tensor ProjectedAttention::attend(const QueryKeyValue& all, const Arguments& arguments, Name tables,
                                  const AttentionMask& mask) const {
  const std::vector<Tensor> rotary = arguments.tensor_list(tables);
  check_rotary_rows(*this, tables, rotary[0], all.q.size(1), options_.rotary_source);
  const Tensor q = ops::rotary_interleaved(all.q, rotary[0], rotary[1]);
  const Tensor k = ops::rotary_interleaved(all.k, rotary[0], rotary[1]);
  return join_heads(attention(q, k, all.v, mask, {}, context_parallel()).out);
}

JointAttention::JointAttention(Name class_name, const AttentionLayerOptions& options)
    : ProjectedAttention(class_name, options), image_(add_projections({"norm_q", "norm_k", "to_q", "to_k", "to_v"})) {
  to_out_ = &add_child<ModuleList>("to_out").append<Linear>(options.width, options.width, options.bias);
  text_ = add_projections({"norm_added_q", "norm_added_k", "add_q_proj", "add_k_proj", "add_v_proj"});
  to_add_out_ = &add_child<Linear>("to_add_out", options.width, options.width, options.bias);
}

std::span<const ArgumentSpec> JointAttention::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                            {argument::encoder_hidden_states},
                                            {argument::image_rotary_emb},
                                            {argument::attention_mask, ArgumentKind::mask}};
  return kArguments;
}

Outputs JointAttention::forward(Arguments& arguments) {
  const QueryKeyValue image = project(image_, arguments.tensor(argument::hidden_states));
  const QueryKeyValue text = project(text_, arguments.tensor(argument::encoder_hidden_states));
  SHARDPROOF_CHECK(text.q.size(2) == image.q.size(2), shape_error,
                   "module '{}' ({}): the text has {} heads and the image {}; a plan must divide both or neither",
                   path(), class_name(), text.q.size(2), image.q.size(2));
  const QueryKeyValue all{ops::concat({text.q, image.q}, 1), ops::concat({text.k, image.k}, 1),
                          ops::concat({text.v, image.v}, 1)};
  const Tensor out = attend(all, arguments, argument::image_rotary_emb,
                            {.values = arguments.optional_tensor(argument::attention_mask)});
  const std::int64_t text_tokens = text.q.size(1);
  const Tensor text_out = out.narrow(1, 0, text_tokens);
  const Tensor image_out = out.narrow(1, text_tokens, out.size(1) - text_tokens);
  return Outputs(std::vector<Tensor>{(*to_out_)(image_out), (*to_add_out_)(text_out)});
}

AcrossHeadsAttention::AcrossHeadsAttention(Name class_name, const AcrossHeadsOptions& options)
    : Module(class_name),
      options_(options),
      norm_q_(add_child<RmsNorm>("norm_q", options.inner, options.norm_eps)),
      norm_k_(add_child<RmsNorm>("norm_k", options.inner, options.norm_eps)),
      to_q_(add_child<Linear>("to_q", options.query_width, options.inner, options.bias)),
      to_k_(add_child<Linear>("to_k", options.key_width, options.inner, options.bias)),
      to_v_(add_child<Linear>("to_v", options.key_width, options.inner, options.bias)),
      to_out_(add_child<ModuleList>("to_out").append<Linear>(options.inner, options.out_width, options.out_bias)) {}

}  // namespace shardproof
