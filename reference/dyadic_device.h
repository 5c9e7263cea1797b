// A device on which attention has one right answer to the last bit, whatever the ranks, chunks and order of merges: the
// base-2 softmax of integer logits, carried as (sum of weighted values, sum of weights, maximum). As long as
// R + ceil(log2(keys * largest |value|)) stays within the type's precision, R the range of the logits of a row, every
// intermediate is exact and the result is one rounded division. Source: verification specification 4.1.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof {

// "dyadic_float64" or "dyadic_float32": values of that width. `real` is kFloat64 or kFloat32.
DType dyadic_dtype(DType real);
// Bits of precision of the values: 53 or 24.
int dyadic_precision(DType real);

// Moves tensors of both types and does attention, merges and the cast that ends it; all else is unsupported_error.
std::unique_ptr<Device> make_dyadic_device();

}  // namespace shardproof
