// Faults of models and of the hooks that divide their arguments: local positions, tables and masks in the wrong order,
// parts of a joint stream that change places.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {
namespace {

constexpr std::string_view kHooks = "parallel/context_parallel.cpp";
constexpr std::string_view kJoint = "models/attention_layers.cpp";
constexpr std::string_view kFlux = "models/flux.cpp";
constexpr std::string_view kQwen = "models/qwenimage.cpp";
constexpr std::string_view kAllModes = "ring ring_anything ulysses ulysses_anything unified";
constexpr std::string_view kPart = "shard(x, input.split_dim, state.flat(), division_of(state), what)";

}  // namespace

std::span<const Fault> model_faults() {
  static const std::vector<Fault> kFaults{
      {.name = "ROPE_LOCAL",
       .catalogue = 31,
       .what = "positions count from the first token of a rank",
       .edits = {{.file = "models/layers.cpp",
                  .statement = "ops::to_doubles(ids.narrow(1, static_cast<std::int64_t>(axis), 1))",
                  .replacement =
                      "zoo::from_first(ops::to_doubles(ids.narrow(1, static_cast<std::int64_t>(axis), 1)))"}},
       .models = "flux flux2",
       .modes = kAllModes},
      {.name = "ROPE_TXTIMG_SWAP",
       .catalogue = 32,
       .what = "the rotary table has the image before the text",
       .edits = {{.file = kFlux,
                  .statement = "ids_without_batch(arguments.tensor(argument::txt_ids))",
                  .replacement = "ids_without_batch(arguments.tensor(argument::img_ids))"},
                 {.file = kFlux,
                  .statement = "ids_without_batch(arguments.tensor(argument::img_ids))",
                  .replacement = "ids_without_batch(arguments.tensor(argument::txt_ids))"}},
       .modes = kAllModes},
      {.name = "ROPE_NOT_SPLIT",
       .catalogue = 33,
       .what = "every rank takes the beginning of the positions",
       .edits = {{.file = kHooks,
                  .statement = kPart,
                  .replacement = "zoo::contains(key, \"ids\") ? zoo::prefix_like(x, shard(x, input.split_dim, "
                                 "state.flat(), division_of(state), what), input.split_dim) : shard(x, "
                                 "input.split_dim, state.flat(), division_of(state), what)"}},
       .models = "flux probe",
       .modes = kAllModes},
      {.name = "MOD_NOT_SPLIT",
       .catalogue = 34,
       .what = "every rank takes the beginning of what modulates the tokens",
       .edits = {{.file = kHooks,
                  .statement = kPart,
                  .replacement = "zoo::contains(key, \"timestep\") ? zoo::prefix_like(x, shard(x, input.split_dim, "
                                 "state.flat(), division_of(state), what), input.split_dim) : shard(x, "
                                 "input.split_dim, state.flat(), division_of(state), what)"}},
       .models = "probe",
       .modes = kAllModes},
      {.name = "TXTIMG_OUT_SWAP",
       .catalogue = 36,
       .what = "the output of joint attention is split image first",
       .edits = {{.file = kJoint,
                  .statement = "out.narrow(1, 0, text_tokens)",
                  .replacement = "out.narrow(1, out.size(1) - text_tokens, text_tokens)"},
                 {.file = kJoint,
                  .statement = "out.narrow(1, text_tokens, out.size(1) - text_tokens)",
                  .replacement = "out.narrow(1, 0, out.size(1) - text_tokens)"}},
       .models = "flux qwenimage",
       .modes = kAllModes},
      // Our own.
      {.name = "MASK_PREFIX",
       .what = "every rank takes the beginning of the mask of keys",
       .edits = {{.file = kHooks,
                  .statement = kPart,
                  .replacement = "zoo::contains(key, \"mask\") ? zoo::prefix_like(x, shard(x, input.split_dim, "
                                 "state.flat(), division_of(state), what), input.split_dim) : shard(x, "
                                 "input.split_dim, state.flat(), division_of(state), what)"}},
       .models = "probe layer",
       .modes = kAllModes},
      {.name = "SPLIT_LIST_FIRST_ONLY",
       .what = "of a list of tensors only the first is divided",
       .edits = {{.file = kHooks,
                  .after = "parts.push_back(",
                  .statement = "input.split_output",
                  .replacement = "i > 0 || input.split_output"}},
       .modes = "ring ulysses unified"},
      {.name = "GATHER_FIRST_ONLY",
       .what = "of several outputs only the first is gathered",
       .edits = {{.file = kHooks,
                  .statement =
                      "tensor = gather(tensor, axis, state_->flat(), division_of(*state_), \"plan: gathered output\");",
                  .replacement = "if (i == 0) tensor = gather(tensor, axis, state_->flat(), division_of(*state_), "
                                 "\"plan: gathered output\");"}},
       .models = "layer",
       .modes = "ring ring_anything ulysses_anything"},
      {.name = "SPLIT_WHATEVER_DIMS",
       .what = "a value of another number of dimensions is divided all the same",
       .edits = {{.file = kHooks,
                  .statement = "input.expected_dims && x.rank() != *input.expected_dims",
                  .replacement = "false"}},
       .models = "probe wan",
       .modes = kAllModes},
      {.name = "JOINT_KEYS_IMAGE_FIRST",
       .what = "keys of the joint attention have the image before the text, queries and values the text",
       .edits = {{.file = kJoint,
                  .statement = "ops::concat({text.k, image.k}, 1)",
                  .replacement = "ops::concat({image.k, text.k}, 1)"}},
       .models = "flux qwenimage",
       .modes = kAllModes},
      {.name = "SINGLE_STREAM_IMAGE_FIRST",
       .what = "the joint stream of the single blocks begins with the image, the rotary table with the text",
       .edits = {{.file = kFlux,
                  .statement = "ops::concat({text, arguments.tensor(argument::hidden_states)}, 1)",
                  .replacement = "ops::concat({arguments.tensor(argument::hidden_states), text}, 1)"}},
       .modes = kAllModes},
      {.name = "ROPE_QUERIES_ONLY",
       .what = "keys are not rotated",
       .edits = {{.file = kJoint,
                  .statement = "ops::rotary_interleaved(all.k, rotary[0], rotary[1])",
                  .replacement = "all.k"}},
       .models = "flux qwenimage",
       .modes = kAllModes},
      {.name = "NORM_OF_KEYS_FOR_QUERIES",
       .what = "queries take the norm of the keys",
       .edits = {{.file = kJoint, .statement = "(*projections.norm_q)(q)", .replacement = "(*projections.norm_k)(q)"}},
       .models = "flux qwenimage",
       .modes = kAllModes},
      {.name = "TABLE_IMAGE_FIRST",
       .what = "the joint rotary table has the image before the text",
       .edits = {{.file = kQwen,
                  .statement = "ops::concat({halves[1], halves[0]}, 0)",
                  .replacement = "ops::concat({halves[0], halves[1]}, 0)"}},
       .models = "qwenimage",
       .modes = kAllModes},
      {.name = "JOINT_MASK_IMAGE_FIRST",
       .what = "the joint mask has the image before the text",
       .edits = {{.file = kQwen,
                  .statement = "ops::concat({text_mask, image}, 1)",
                  .replacement = "ops::concat({image, text_mask}, 1)"}},
       .models = "qwenimage",
       .modes = kAllModes},
      {.name = "HISTORY_LOCAL",
       .what = "history is counted in the tokens of a rank instead of the whole sequence",
       .edits = {{.file = "models/helios.cpp",
                  .statement = "part.total - current - part.start",
                  .replacement = "k.size(1) - current"}},
       .models = "helios",
       .modes = kAllModes},
  };
  return kFaults;
}

}  // namespace shardproof::zoo
