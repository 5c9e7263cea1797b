#include "app/agreement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "app/build_info.h"
#include "core/collectives.h"
#include "core/file.h"
#include "core/random.h"
#include "real/peer_failure.h"

namespace shardproof {
namespace {

std::string text_of(std::optional<int> number) { return number ? std::to_string(*number) : "none"; }
std::string text_of(bool is_set) { return is_set ? "yes" : "no"; }

// A text as numbers, cut to what a message shows.
constexpr std::size_t kShownNumbers = 32;
constexpr std::size_t kShownBytes = kShownNumbers * sizeof(std::int64_t);

std::array<std::int64_t, kShownNumbers> numbers_of(const std::string& text) {
  std::array<char, kShownBytes> bytes{};
  std::copy_n(text.begin(), std::min(text.size(), bytes.size()), bytes.begin());
  return std::bit_cast<std::array<std::int64_t, kShownNumbers>>(bytes);
}

std::string text_in(std::span<const std::int64_t> numbers) {
  std::string text(kShownBytes, '\0');
  std::memcpy(text.data(), numbers.data(), text.size());
  return printable(text.substr(0, text.find('\0')));
}

// The first rank whose part differs from that of rank 0, and where; nothing if there is none.
struct Difference {
  std::size_t rank = 0;
  std::size_t index = 0;
};
std::optional<Difference> first_difference(std::span<const std::int64_t> all, std::size_t part) {
  for (std::size_t i = part; i < all.size(); ++i) {
    if (all[i] != all[i % part]) return Difference{i / part, i % part};
  }
  return std::nullopt;
}

}  // namespace

std::vector<Setting> settings_of(const Options& options) {
  std::string sources;
  for (const std::string& source : options.sources) sources += (sources.empty() ? "" : " ") + source;
  const std::string gather = options.gather == GatherChoice::ragged   ? "ragged"
                             : options.gather == GatherChoice::padded ? "padded"
                                                                      : "both";
  const char* const check = options.check == CheckChoice::exact_order ? "exact-order"
                            : options.check == CheckChoice::rounding  ? "rounding"
                                                                      : "off";
  return {
      {"version of the program", build_version()},
      {"SOURCE", sources},
      {"--ring-degree", text_of(options.ring_degree)},
      {"--ulysses-degree", text_of(options.ulysses_degree)},
      {"--tp-degree", text_of(options.tp_degree)},
      {"--mesh", options.mesh ? options.mesh->text() : "none"},
      {"--ulysses-anything", text_of(options.ulysses_anything)},
      {"--ring-anything", text_of(options.ring_anything)},
      {"--rotate-method", options.rotate_method.value_or("none")},
      {"--no-convert-to-fp32", text_of(!options.convert_to_fp32)},
      {"--plan", options.plan},
      {"--case", options.case_name.value_or("all")},
      {"--dtype", std::string(options.dtype.name())},
      {"--device", std::string(device_name(options))},
      {"--gather", gather},
      {"--seed", std::to_string(options.seed)},
      {"--check", check},
      {"--warmup", text_of(options.warmup)},
      {"--steps", text_of(options.steps)},
      {"--cupti", text_of(options.cupti)},
      {"--trace", options.trace.value_or("none")},
  };
}

std::uint64_t hash_of(std::span<const Setting> settings) {
  std::string text;
  for (const Setting& setting : settings) text += fmt::format("{}={}{}", setting.name, setting.value, '\0');
  return stable_hash(text);
}

void check_agreement(Communicator& world, std::span<const Setting> settings) {
  const std::array<std::int64_t, 2> whole{static_cast<std::int64_t>(settings.size()),
                                          static_cast<std::int64_t>(hash_of(settings))};
  const std::vector<std::int64_t> wholes =
      collectives::all_gather_numbers(world, whole, "run: hashes of the configurations");
  const std::optional<Difference> any = first_difference(wholes, whole.size());
  if (!any) return;
  if (any->index == 0) fail_for_peer("rank {} is another version of the program than rank 0", any->rank);
  std::vector<std::int64_t> hashes;
  for (const Setting& setting : settings) hashes.push_back(static_cast<std::int64_t>(stable_hash(setting.value)));
  const std::vector<std::int64_t> all = collectives::all_gather_numbers(world, hashes, "run: hashes of the settings");
  const std::optional<Difference> found = first_difference(all, hashes.size());
  if (!found) fail_for_peer("rank {} is another version of the program than rank 0", any->rank);
  const Setting& setting = settings[found->index];
  const std::vector<std::int64_t> texts =
      collectives::all_gather_numbers(world, numbers_of(setting.value), "run: the setting that differs");
  const std::span<const std::int64_t> all_texts(texts);
  fail_for_peer("rank {} was started with another configuration than rank 0: {} is '{}' there, and '{}' on rank 0",
                found->rank, setting.name, text_in(all_texts.subspan(found->rank * kShownNumbers, kShownNumbers)),
                text_in(all_texts.first(kShownNumbers)));
}

}  // namespace shardproof
