// Faults of Ulysses: how heads and tokens change places, forth and back; and of the division and the gather of
// sequences, which every mode shares.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {
namespace {

constexpr std::string_view kUlysses = "parallel/ulysses_attention.cpp";
constexpr std::string_view kMovementFile = "parallel/movement.cpp";
constexpr std::string_view kUlyssesModes = "ulysses ulysses_anything unified";
constexpr std::string_view kUneven = "ulysses_anything ring_anything";
constexpr std::string_view kEven = "ulysses ring unified";

// Statements that several faults replace.
constexpr std::string_view kGatheredRagged = "collectives::all_gather(group, rows, sizes, purpose).wait().joined()";
constexpr std::string_view kGatheredEven = "rows_to_axis(collectives::all_gather(group, rows, purpose).wait(), a)";
constexpr std::string_view kBalancedPart =
    "x.narrow(a, balanced_offset(size, members, group.rank()), balanced_size(size, members, group.rank()))";
constexpr std::string_view kEvenPart = "x.narrow(a, group.rank() * (size / members), size / members)";
constexpr std::string_view kByMember =
    "buffer.view({layout.members, tokens, batch, layout.local, width}).permute({2, 1, 0, 3, 4})";
constexpr std::string_view kScatteredValues = "scatter_heads(v, layout, key_lengths, group, \"ulysses: heads of v\")";
constexpr std::string_view kScatteredKeys = "scatter_heads(k, layout, key_lengths, group, \"ulysses: heads of k\")";
constexpr std::string_view kGatheredOut =
    "gather_heads(out, layout, query_lengths, group, \"ulysses: heads of the output\")";
constexpr std::string_view kInterleavable = "x.unflatten(2, members, layout.local).permute({2, 1, 0, 3, 4})";

}  // namespace

std::span<const Fault> ulysses_faults() {
  static const std::vector<Fault> kFaults{
      {.name = "GATHER_CHUNK_SIZES",
       .catalogue = 1,
       .what = "the gather of an output assumes chunks of equal size, with what is left for the last",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredRagged,
                  .replacement = "zoo::gather_assuming(group, rows, sizes, zoo::ceil_chunks_like(sizes), purpose, "
                                 "zoo::Filling::zeros)"}},
       .modes = kUneven,
       .where = "entries"},
      {.name = "REMAINDER_LAST",
       .catalogue = 2,
       .what = "offsets give the remainder to the last rank, sizes to the first ones",
       .edits = {{.file = kMovementFile,
                  .statement = kBalancedPart,
                  .replacement =
                      "x.narrow(a, group.rank() * (size / members), balanced_size(size, members, group.rank()))"}},
       .modes = kUneven,
       .where = "entries"},
      {.name = "GATHER_PAD_TAIL",
       .catalogue = 3,
       .what = "an output is gathered padded to the longest part and trimmed at its end only",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredRagged,
                  .replacement = "zoo::gather_trimming_the_tail(group, rows, sizes, purpose, zoo::Filling::zeros)"}},
       .modes = kUneven,
       .where = "entries"},
      {.name = "GATHER_RANK_RELATIVE",
       .catalogue = 4,
       .what = "a rank's gathered output begins with its own part",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredEven,
                  .replacement = "rows_to_axis(zoo::rolled(collectives::all_gather(group, rows, purpose).wait(), 0, "
                                 "group.rank() * rows.size(0)), a)"}},
       .modes = kEven,
       .where = "entries"},
      {.name = "GATHER_WRONG_DIM",
       .catalogue = 5,
       .what = "an output is gathered along the channels and read as if it were along the tokens",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredEven,
                  .replacement = "zoo::gather_along_the_last(part, a, group, purpose)"}},
       .modes = kEven,
       .where = "entries"},
      {.name = "U_HEAD_INTERLEAVE",
       .catalogue = 25,
       .what = "heads are scattered round robin and gathered in blocks",
       .edits = {{.file = kMovementFile,
                  .statement = kInterleavable,
                  .replacement = "x.unflatten(2, layout.local, members).permute({3, 1, 0, 2, 4})"}},
       .modes = kUlyssesModes},
      {.name = "U_OUT_ORDER",
       .catalogue = 26,
       .what = "the heads of the output are joined in reverse order of the ranks",
       .edits = {{.file = kMovementFile,
                  .statement = kByMember,
                  .replacement = "zoo::reversed(buffer.view({layout.members, tokens, batch, layout.local, width}), "
                                 "0).permute({2, 1, 0, 3, 4})"}},
       .modes = kUlyssesModes},
      {.name = "U_V_WRONG_RANK",
       .catalogue = 27,
       .what = "the block of heads of the values belongs to the next rank",
       .edits = {{.file = kUlysses,
                  .statement = kScatteredValues,
                  .replacement = "scatter_heads(zoo::rolled(v, 2, layout.local), layout, key_lengths, group, "
                                 "\"ulysses: heads of v\")"}},
       .modes = kUlyssesModes},
      {.name = "UA_HPAD_FIRST",
       .catalogue = 28,
       .what = "missing heads are padded in front and trimmed at the end",
       .edits = {{.file = kMovementFile,
                  .statement = "joined.narrow(2, 0, layout.heads)",
                  .replacement = "joined.narrow(2, layout.pads, layout.heads)"}},
       .models = "layer",
       .modes = "ulysses_anything"},
      {.name = "UA_STALE_SPLIT",
       .catalogue = 29,
       .what = "output sizes follow from dividing the total, though text and image were divided apart",
       .edits = {{.file = kUlysses,
                  .statement = kGatheredOut,
                  .replacement = "gather_heads(out, layout, zoo::balanced_like(query_lengths), group, \"ulysses: heads "
                                 "of the output\")"}},
       .modes = "ulysses_anything"},
      {.name = "UA_CACHED_IMG_SPLIT",
       .catalogue = 30,
       .what = "output sizes are those of equal chunks",
       .edits = {{.file = kUlysses,
                  .statement = kGatheredOut,
                  .replacement = "gather_heads(out, layout, zoo::ceil_chunks_like(query_lengths), group, \"ulysses: "
                                 "heads of the output\")"}},
       .modes = "ulysses_anything"},
      // Our own.
      {.name = "U_K_HEADS_REVERSED",
       .what = "the heads of the keys are dealt in reverse order",
       .edits = {{.file = kUlysses,
                  .statement = kScatteredKeys,
                  .replacement =
                      "scatter_heads(zoo::reversed(k, 2), layout, key_lengths, group, \"ulysses: heads of k\")"}},
       .modes = kUlyssesModes},
      {.name = "U_KEY_LENGTHS_OF_QUERIES",
       .what = "keys are exchanged with the lengths of the queries",
       .edits = {{.file = kUlysses,
                  .statement = kScatteredKeys,
                  .replacement = "scatter_heads(k, layout, query_lengths, group, \"ulysses: heads of k\")"}},
       .models = "layer probe",
       .modes = kUlyssesModes},
      {.name = "U_TOKENS_BEFORE_BATCH",
       .what = "batch and tokens are flattened in the wrong order before the exchange of heads",
       .edits = {{.file = kMovementFile,
                  .statement = kInterleavable,
                  .replacement = "ops::reshape(x.unflatten(2, members, layout.local).permute({2, 0, 1, 3, 4}), "
                                 "{members, tokens, batch, layout.local, width})"}},
       .models = "flux probe",
       .modes = kUlyssesModes},
      {.name = "U_OUT_TOKENS_BEFORE_BATCH",
       .what = "batch and tokens are read in the wrong order behind the exchange of the output",
       .edits = {{.file = kMovementFile,
                  .statement = kByMember,
                  .replacement = "ops::reshape(buffer, {layout.members, batch, tokens, layout.local, "
                                 "width}).permute({1, 2, 0, 3, 4})"}},
       .models = "flux probe",
       .modes = kUlyssesModes},
      {.name = "U_LSE_HEADS_REVERSED",
       .what = "the log-sum-exp returns with its heads in reverse order",
       .edits = {{.file = kUlysses,
                  .statement = "moving_lse.wait().squeeze(-1)",
                  .replacement = "zoo::reversed(moving_lse.wait().squeeze(-1), 2)"}},
       .models = "layer",
       .modes = "ulysses_anything"},
      {.name = "U_INNER_KV_SWAP",
       .what = "keys and values change places between the exchanges",
       .edits = {{.file = kUlysses,
                  .statement = "inner(all_q, all_k, all_v, own_mask)",
                  .replacement = "inner(all_q, all_v, all_k, own_mask)"}},
       .modes = kUlyssesModes},
      {.name = "U_Q_STALE",
       .what = "the queries that a rank attends with are those of the call before",
       .edits = {{.file = kUlysses,
                  .statement = "inner(all_q, all_k, all_v, own_mask)",
                  .replacement = "inner(zoo::left_over(\"queries\", &group, all_q), all_k, all_v, own_mask)"}},
       .modes = kUlyssesModes},
      {.name = "U_OUT_BEFORE_ATTENTION",
       .what = "what returns is the exchanged values instead of the attended ones",
       .edits = {{.file = kUlysses,
                  .statement = kGatheredOut,
                  .replacement = "gather_heads(all_v, layout, key_lengths, group, \"ulysses: heads of the output\")"}},
       .modes = kUlyssesModes},
      {.name = "U_SCATTER_TAIL_MISSING",
       .what = "the tail of the exchanged queries is read before it has arrived",
       .edits = {{.file = kMovementFile,
                  .statement = "buffer.narrow(2, 0, real)",
                  .replacement = "zoo::with_tail_missing(buffer).narrow(2, 0, real)"}},
       .modes = kUlyssesModes},
      {.name = "SHARD_REVERSED",
       .what = "parts are dealt in reverse order of the ranks, and gathered in order",
       .edits = {{.file = kMovementFile,
                  .statement = kEvenPart,
                  .replacement = "x.narrow(a, (members - 1 - group.rank()) * (size / members), size / members)"}},
       .modes = kEven,
       .where = "entries"},
      {.name = "SHARD_OVERLAPS",
       .what = "a part begins one entry early, so that neighbours overlap",
       .edits = {{.file = kMovementFile,
                  .statement = kBalancedPart,
                  .replacement = "x.narrow(a, std::max<std::int64_t>(0, balanced_offset(size, members, group.rank()) - "
                                 "1), balanced_size(size, members, group.rank()))"}},
       .modes = kUneven,
       .where = "entries"},
      {.name = "SHARD_ROUND_ROBIN",
       .what = "entries are dealt round robin, and gathered in blocks",
       .edits = {{.file = kMovementFile,
                  .statement = kEvenPart,
                  .replacement =
                      "x.unflatten(a, size / members, members).narrow(a + 1, group.rank(), 1).squeeze(a + 1)"}},
       .modes = kEven,
       .where = "entries"},
      {.name = "GATHER_STALE_SIZES",
       .what = "the sizes of a gather are those of the gather before",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredRagged,
                  .replacement = "collectives::all_gather(group, rows, zoo::left_over(\"gather\", &group, sizes), "
                                 "purpose).wait().joined()"}},
       .models = "ltx2 helios",
       .modes = kUneven,
       .where = "entries"},
      {.name = "GATHER_ORDER_REVERSED",
       .what = "a gathered output has its parts in reverse order of the ranks",
       .edits = {{.file = kMovementFile,
                  .statement = kGatheredEven,
                  .replacement =
                      "rows_to_axis(zoo::blocks_reversed(collectives::all_gather(group, rows, purpose).wait(), "
                      "group.size()), a)"}},
       .modes = kEven,
       .where = "entries"},
  };
  return kFaults;
}

}  // namespace shardproof::zoo
