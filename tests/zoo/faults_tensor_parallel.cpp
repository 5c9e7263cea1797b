// Faults of tensor parallelism: which slice of a weight a rank takes, from where, and how the partial results of all
// ranks become one.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {
namespace {

constexpr std::string_view kTensor = "parallel/tensor_parallel.cpp";
constexpr std::string_view kSpecs = "parallel/tensor_parallel_specs.cpp";
constexpr std::string_view kTensorParallelModes = "tp tp+ring tp+ulysses";

constexpr std::string_view kReduced =
    "collectives::all_reduce(state().group(), layer.product(x), \"tp: sum of partial results\").wait()";
constexpr std::string_view kBiased = "bias.defined() ? ops::add(sum, bias) : sum";
// In local_shard: the ranges of a slice, and how they are joined.
constexpr std::string_view kInLocalShard = "Tensor local_shard(";
constexpr std::string_view kRanges = "ranges_of_rank(spec, rank, degree)";
constexpr std::string_view kJoined = "ops::concat(pieces, *spec.dim)";

}  // namespace

std::span<const Fault> tensor_parallel_faults() {
  static const std::vector<Fault> kFaults{
      {.name = "TP_BIAS_EACH",
       .catalogue = 46,
       .what = "every rank adds the bias of a rowwise layer to its partial result",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "collectives::all_reduce(state().group(), layer.has_bias() ? "
                                 "ops::add(layer.product(x), layer.bias()) : layer.product(x), \"tp: sum of partial "
                                 "results\").wait()"},
                 {.file = kTensor, .statement = kBiased, .replacement = "sum"}},
       .modes = kTensorParallelModes},
      {.name = "TP_AR_SKIP_ATTN",
       .catalogue = 47,
       .what = "no reduction after attention",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "zoo::contains(layer.path(), \"attn\") ? layer.product(x) : "
                                 "collectives::all_reduce(state().group(), layer.product(x), \"tp: sum of partial "
                                 "results\").wait()"}},
       .modes = kTensorParallelModes,
       .where = "sharded:attn"},
      {.name = "TP_AR_SKIP_MLP",
       .catalogue = 48,
       .what = "no reduction after the feed-forward",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "zoo::contains(layer.path(), \"attn\") ? collectives::all_reduce(state().group(), "
                                 "layer.product(x), \"tp: sum of partial results\").wait() : layer.product(x)"}},
       .modes = kTensorParallelModes,
       .where = "sharded:ff sharded:proj_out"},
      {.name = "TP_AR_MAX",
       .catalogue = 49,
       .what = "the largest partial result instead of the sum",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "zoo::all_reduce_by(state().group(), layer.product(x), zoo::Combination::maximum)"}},
       .modes = kTensorParallelModes,
       .killer = Killer::order},
      {.name = "TP_AR_AVG",
       .catalogue = 50,
       .what = "the mean of the partial results instead of the sum",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "zoo::all_reduce_by(state().group(), layer.product(x), zoo::Combination::average)"}},
       .modes = kTensorParallelModes},
      {.name = "TP_QKV_CONTIG",
       .catalogue = 51,
       .what = "the rows of packed queries, keys and values are sliced as if they were one block",
       .edits = {{.file = kSpecs,
                  .statement = "return ranges;",
                  .replacement = "return zoo::contains(spec.parameter, \"to_qkv\") ? zoo::contiguous_range(spec, rank, "
                                 "degree) : ranges;"}},
       .models = "flux2",
       .modes = kTensorParallelModes,
       .where = "sharded:to_qkv"},
      {.name = "TP_GU_CONTIG",
       .catalogue = 52,
       .what = "the rows of packed gate and up are sliced as if they were one block",
       .edits = {{.file = kSpecs,
                  .statement = "return ranges;",
                  .replacement = "return zoo::contains(spec.parameter, \"linear_in\") ? zoo::contiguous_range(spec, "
                                 "rank, degree) : ranges;"}},
       .models = "flux2",
       .modes = kTensorParallelModes,
       .where = "sharded:linear_in"},
      {.name = "TP_GU_SWAP",
       .catalogue = 53,
       .what = "a rank takes the halves of its gate and up the wrong way round",
       .edits = {{.file = "models/flux2.cpp",
                  .statement = "ops::multiply(gate_(halves[0]), halves[1])",
                  .replacement = "ops::multiply(gate_(halves[1]), halves[0])"}},
       .models = "flux2",
       .modes = kTensorParallelModes,
       .where = "class:Flux2SwiGLU"},
      {.name = "TP_ROW_REV",
       .catalogue = 56,
       .what = "the columns of rowwise layers are dealt in reverse order of the ranks",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kRanges,
                  .replacement = "ranges_of_rank(spec, *spec.dim == 1 ? degree - 1 - rank : rank, degree)"}},
       .modes = kTensorParallelModes},
      {.name = "TP_COLBIAS0",
       .catalogue = 57,
       .what = "every rank takes rank 0's slice of the bias of colwise layers",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kRanges,
                  .replacement = "ranges_of_rank(spec, spec.parameter.ends_with(\"bias\") ? 0 : rank, degree)"}},
       .modes = kTensorParallelModes},
      {.name = "TP_HEAD_INTERLEAVE",
       .catalogue = 58,
       .what = "heads are dealt round robin, while the columns behind attention are dealt in blocks",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kJoined,
                  .replacement = "*spec.dim == 0 && (zoo::contains(spec.parameter, \"attn.to_\") || "
                                 "zoo::contains(spec.parameter, \"attn.add_\")) ? zoo::round_robin_heads(full, 0, 16, "
                                 "rank, degree) : ops::concat(pieces, *spec.dim)"}},
       .modes = kTensorParallelModes,
       .where = "sharded:attn"},
      {.name = "TP_DROP_LAST",
       .catalogue = 59,
       .what = "the last rank's partial result is lost",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "collectives::all_reduce(state().group(), ops::multiply(layer.product(x), "
                                 "state().rank() + 1 == state().degree() ? 0.0 : 1.0), \"tp: sum of partial "
                                 "results\").wait()"}},
       .modes = kTensorParallelModes},
      {.name = "TP_RES_EACH",
       .catalogue = 60,
       .what = "the residual stands inside the reduced term and is counted by two ranks",
       .edits = {{.file = "models/flux.cpp",
                  .statement = "add_gated(x, modulation[1], attended)",
                  .replacement = "add_gated(ops::add(x, x), modulation[1], attended)"}},
       .modes = kTensorParallelModes,
       .where = "class:FluxTransformerBlock"},
      {.name = "TP_AR_TWICE",
       .catalogue = 61,
       .what = "partial results are reduced twice",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "collectives::all_reduce(state().group(), collectives::all_reduce(state().group(), "
                                 "layer.product(x), \"tp: sum of partial results\").wait(), \"tp: sum of partial "
                                 "results\").wait()"}},
       .modes = kTensorParallelModes},
      {.name = "TP_BIAS_MISSING",
       .catalogue = 62,
       .what = "the bias of rowwise layers is lost",
       .edits = {{.file = kTensor, .statement = kBiased, .replacement = "sum"}},
       .modes = kTensorParallelModes},
      {.name = "TP_SCALE_LOCAL",
       .catalogue = 63,
       .what = "the scale of the logits follows from the local width and the number of all heads",
       .edits = {{.file = "models/attention_layers.cpp",
                  .statement = "attention(q, k, all.v, mask, {}, context_parallel())",
                  .replacement = "attention(q, k, all.v, mask, {.scale = zoo::scale_of(q.size(2) * q.size(3) * "
                                 "options_.head_dim / options_.width)}, context_parallel())"}},
       .modes = kTensorParallelModes,
       .where = "attention"},
      {.name = "TP_BF16_AR",
       .catalogue = 64,
       .what = "partial results are reduced in bfloat16",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "collectives::all_reduce(state().group(), zoo::through(layer.product(x), kBFloat16), "
                                 "\"tp: sum of partial results\").wait()"}},
       .modes = kTensorParallelModes,
       .killer = Killer::rounding},
      // Our own.
      {.name = "TP_BIAS_RANK0",
       .what = "only rank 0 adds the bias of rowwise layers",
       .edits = {{.file = kTensor,
                  .statement = kBiased,
                  .replacement = "bias.defined() && state().rank() == 0 ? ops::add(sum, bias) : sum"}},
       .modes = kTensorParallelModes},
      {.name = "TP_SHARD_OF_RANK0",
       .what = "every rank takes the slices of rank 0",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kRanges,
                  .replacement = "ranges_of_rank(spec, 0, degree)"}},
       .modes = kTensorParallelModes},
      {.name = "TP_PACKED_ROW_CONTIG",
       .what = "the columns of a layer that takes attention and feed-forward side by side are sliced as one block",
       .edits = {{.file = kSpecs,
                  .statement = "return ranges;",
                  .replacement = "return spec.blocks.size() > 1 && *spec.dim == 1 ? zoo::contiguous_range(spec, rank, "
                                 "degree) : ranges;"}},
       .models = "flux flux2",
       .modes = kTensorParallelModes},
      {.name = "TP_BLOCK_OFFSETS_LOCAL",
       .what = "the blocks of a packed layer are found at local offsets",
       .edits = {{.file = kSpecs,
                  .after = "ranges.push_back({offset + rank * length, length});",
                  .statement = "offset += size;",
                  .replacement = "offset += length;"}},
       .models = "flux2",
       .modes = kTensorParallelModes},
      {.name = "TP_MLP_ROUND_ROBIN",
       .what = "rows of the feed-forward's first layer are dealt round robin, the columns of its second in blocks",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kJoined,
                  .replacement = "*spec.dim == 0 && zoo::contains(spec.parameter, \"ff.net.0\") ? "
                                 "zoo::round_robin_heads(full, 0, 1, rank, degree) : ops::concat(pieces, *spec.dim)"}},
       .modes = kTensorParallelModes,
       .where = "sharded:ff"},
      {.name = "TP_K_OF_NEXT_RANK",
       .what = "the slices of the keys' projections are those of the next rank",
       .edits = {{.file = kSpecs,
                  .after = kInLocalShard,
                  .statement = kRanges,
                  .replacement = "ranges_of_rank(spec, zoo::contains(spec.parameter, \"to_k\") ? (rank + 1) % degree : "
                                 "rank, degree)"}},
       .modes = kTensorParallelModes,
       .where = "sharded:to_k"},
      {.name = "TP_SCATTER_ROTATED",
       .what = "rank 0 scatters every rank the slices of the next one, but for whole parameters",
       .edits = {{.file = kTensor,
                  .statement = "local_shard(full, spec, rank, state.degree())",
                  .replacement = "local_shard(full, spec, *spec.dim == 1 ? (rank + 1) % state.degree() : rank, "
                                 "state.degree())"}},
       .modes = "tp_scattered"},
      {.name = "TP_GROUP_ALONG_RING",
       .what = "partial results are summed along the ring's dimension of the mesh",
       .edits = {{.file = kTensor,
                  .statement = "split_along(world, mesh, dimensions, \"tp\")",
                  .replacement =
                      "split_along(world, mesh, std::vector<std::string_view>{mesh.has(\"ring\") ? \"ring\" : "
                      "\"tp\"}, \"tp\")"}},
       .models = "flux flux2",
       .modes = "tp+ring"},
      {.name = "TP_REDUCE_ROTATED",
       .what = "the channels of the sum come back shifted by one rank's share",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "zoo::rolled(collectives::all_reduce(state().group(), layer.product(x), \"tp: sum of "
                                 "partial results\").wait(), -1, layer.out_features() / state().degree())"}},
       .modes = kTensorParallelModes},
      {.name = "TP_REDUCE_OF_OWN",
       .what = "a rank sums its own partial result as often as there are ranks",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "ops::multiply(layer.product(x), static_cast<double>(state().degree()))"}},
       .modes = kTensorParallelModes},
      {.name = "TP_FP16_AR",
       .what = "partial results are reduced in float16",
       .edits = {{.file = kTensor,
                  .statement = kReduced,
                  .replacement = "collectives::all_reduce(state().group(), zoo::through(layer.product(x), kFloat16), "
                                 "\"tp: sum of partial results\").wait()"}},
       .modes = kTensorParallelModes,
       .killer = Killer::rounding},
  };
  return kFaults;
}

}  // namespace shardproof::zoo
