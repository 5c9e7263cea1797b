// A report as JSON: {command, version, features, model, results, summary}, in this order, with the field names that the
// architecture fixes. A figure that does not exist is null; NaN and infinities are the strings "nan" and "inf", since
// JSON has no numbers for them.
#pragma once

#include "core/json.h"
#include "reports/result.h"

namespace shardproof {

// `results` of verify: {case, mode, mesh, dtype, device, tier, rotate_method, convert_to_fp32, seed, schedule_seed,
// tokens_per_rank, verdict, reason, figure, max_abs, worst {rank, index}, bytes_sent_per_rank, collectives,
// skipped_entries [{module, argument, reason}], diagnosis, movements_checked, bitwise_checked, modules {worst,
// runner_up {module, class, call, value, rank, index, ratio}, count, compared, not_comparable}, extremes_checked,
// also_passed, not_checked, seconds}; rotate_method is "" where no ring rotates, modules null but in the rounding tier
// of a type narrower than float64. Of oracle: {source, model, case, comparison, verdict, error, tolerance,
// first_module, reason, without_counterpart, seconds}. Of plan: {case, mode, mesh, module, argument, action, axis,
// total, per_rank, reason}. `summary` counts by verdict (of plan by action) and holds every word, zeros included.
Json json_report(const Report& report);

}  // namespace shardproof
