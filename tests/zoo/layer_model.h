// Attention alone as a model: queries, keys and values go in, the output and its log-sum-exp come out. It reaches what
// no whole model does: five heads on two ranks, masks for every head and query over the keys of all ranks, as many
// tokens as heads, keys of another length than the queries, logits of 150, chunks without any key.
#pragma once

#include "models/model_type.h"

namespace shardproof::zoo {

ModelType layer_model_type();

}  // namespace shardproof::zoo
