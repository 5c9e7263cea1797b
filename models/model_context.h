// What a model needs to know besides its configuration: where and in which type it computes, and how exact its host
// tables are. Cheap to copy; the device must outlive every model and tensor made with it.
#pragma once

#include "core/device.h"
#include "core/tables.h"

namespace shardproof {

struct ModelContext {
  Device* device = nullptr;
  DType dtype = kFloat64;
  TablePrecision table_precision = TablePrecision::float64;
};

}  // namespace shardproof
