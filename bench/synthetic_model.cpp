#include "bench/synthetic_model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/host_memory.h"
#include "core/json.h"
#include "core/ops.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "models/state.h"

namespace shardproof::bench {
namespace {

constexpr const char* kClassName = "FluxTransformer2DModel";
constexpr const char* kCaseName = "synthetic";
constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kTextWidth = 256;
constexpr std::int64_t kPooledWidth = 64;

struct Width {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value() const { return heads * head_dim; }
};
// Of FLUX.1 itself, and two below it.
constexpr std::array kWidths{Width{24, 128}, Width{8, 128}, Width{8, 32}};

// Bytes of the matrices of one block: 36 D^2 and 15 D^2 numbers.
double double_block_bytes(const Width& width) {
  return 4.0 * 36.0 * static_cast<double>(width.value() * width.value());
}
double single_block_bytes(const Width& width) {
  return 4.0 * 15.0 * static_cast<double>(width.value() * width.value());
}

// The widest model that has at least eight single blocks: a third of the bytes in double blocks, the rest in single
// ones.
Json sized_config(double bytes) {
  Width width = kWidths.back();
  for (const Width& candidate : kWidths) {
    if (8 * single_block_bytes(candidate) > bytes) continue;
    width = candidate;
    break;
  }
  const auto doubles = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / 3 / double_block_bytes(width)));
  const double left = bytes - static_cast<double>(doubles) * double_block_bytes(width);
  const auto singles = std::max<std::int64_t>(1, static_cast<std::int64_t>(left / single_block_bytes(width) + 0.5));
  const std::int64_t axis = width.head_dim / 8;
  Json config = Json::object();
  config.set("_class_name", kClassName);
  config.set("in_channels", kChannels);
  config.set("num_layers", doubles);
  config.set("num_single_layers", singles);
  config.set("attention_head_dim", width.head_dim);
  config.set("num_attention_heads", width.heads);
  config.set("joint_attention_dim", kTextWidth);
  config.set("pooled_projection_dim", kPooledWidth);
  config.set("guidance_embeds", false);
  config.set("axes_dims_rope", Json::array({2 * axis, 2 * axis, width.head_dim - 4 * axis}));
  return config;
}

template <class Number>
Number number_from(std::string_view option, std::string_view text) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  SHARDPROOF_CHECK(parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size(), usage_error,
                   "{}: '{}' is not a number that it takes", option, printable(text));
  return number;
}

void check(const SyntheticExport& options) {
  SHARDPROOF_CHECK(options.class_name == kClassName, usage_error, "class '{}' cannot be made up; expected {}",
                   printable(options.class_name), kClassName);
  SHARDPROOF_CHECK(options.gigabytes >= kSmallestGigabytes && options.gigabytes <= kLargestGigabytes, usage_error,
                   "{} gigabytes; expected {} to {}", options.gigabytes, kSmallestGigabytes, kLargestGigabytes);
  SHARDPROOF_CHECK(options.tokens >= 4 && options.tokens <= kLargestTokens && options.tokens % 4 == 0, usage_error,
                   "{} tokens; expected a multiple of 4 from 4 to {}", options.tokens, kLargestTokens);
  SHARDPROOF_CHECK(options.shards >= 1 && options.shards <= kLargestShards, usage_error, "{} shards; expected 1 to {}",
                   options.shards, kLargestShards);
  std::error_code status;
  const bool is_free =
      !std::filesystem::exists(options.folder, status) ||
      (std::filesystem::is_directory(options.folder, status) && std::filesystem::is_empty(options.folder, status));
  SHARDPROOF_CHECK(is_free && !options.folder.empty(), usage_error,
                   "'{}' is no place for an export; expected a new or an empty folder",
                   printable(options.folder.native()));
  std::filesystem::create_directories(options.folder, status);
  SHARDPROOF_CHECK(!status, file_error, "'{}' cannot be created: {}", printable(options.folder.native()),
                   status.message());
}

class Writer {
 public:
  explicit Writer(const SyntheticExport& options) : options_(options), config_(sized_config(1e9 * options.gigabytes)) {}

  std::int64_t write() {
    write_file_atomically(options_.folder / "config.json", config_.dump() + "\n");
    declare_weights();
    write_weights();
    write_case();
    return total_;
  }

 private:
  void declare_weights() {
    const ModelContext context{&host_, kFloat32, TablePrecision::float32};
    const std::unique_ptr<Module> declared = find_model_type(kClassName).create(config_, context);
    for_each_parameter(*declared, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
      weights_.push_back({path, kFloat32, parameter.tensor->shape()});
      total_ += static_cast<std::int64_t>(parameter.tensor->bytes());
    });
  }

  // Shards of about equal size, cut between tensors.
  void write_weights() {
    const std::span<const DeclaredTensor> all = weights_;
    Json map = Json::object();
    std::size_t first = 0;
    std::int64_t before = 0;
    for (int shard = 0; shard < options_.shards; ++shard) {
      const std::string name = options_.shards == 1
                                   ? std::string("weights.safetensors")
                                   : fmt::format("weights-{:05}-of-{:05}.safetensors", shard + 1, options_.shards);
      std::size_t end = first;
      while (end < all.size() && (shard + 1 == options_.shards || before < total_ / options_.shards * (shard + 1))) {
        before += all[end].shape.numel() * static_cast<std::int64_t>(all[end].dtype.size());
        map.set(all[end++].name, name);
      }
      const std::span<const DeclaredTensor> part = all.subspan(first, end - first);
      write_safetensors(options_.folder / name, part, [&](std::size_t i) {
        return random_parameter(part[i].name, part[i].shape, options_.seed, host_, part[i].dtype);
      });
      first = end;
    }
    if (options_.shards == 1) return;
    Json index = Json::object();
    index.set("metadata", Json::object({{"total_size", total_}}));
    index.set("weight_map", std::move(map));
    write_file_atomically(options_.folder / "weights.safetensors.index.json", index.dump() + "\n");
  }

  void write_case() {
    const std::int64_t text = options_.tokens / 4;
    const std::int64_t image = options_.tokens - text;
    std::vector<NamedTensor> inputs;
    const auto draw = [&](const std::string& name, const Shape& shape, double deviation = 1.0) {
      inputs.push_back({name, random_input(host_, options_.seed, name, shape, deviation)});
    };
    draw("hidden_states", {1, image, kChannels});
    draw("encoder_hidden_states", {1, text, kTextWidth});
    draw("pooled_projections", {1, kPooledWidth});
    inputs.push_back({"timestep", ops::full(host_, {1}, kFloat32, 0.5)});
    draw("img_ids", {image, 3}, 5.0);
    draw("txt_ids", {text, 3}, 5.0);
    Json names = Json::array();
    for (const NamedTensor& input : inputs) names.append(input.name);
    Json description = Json::object();
    description.set("case", kCaseName);
    description.set("tensor_args", std::move(names));
    description.set("outputs", Json::array({"sample"}));
    write_safetensors(options_.folder / fmt::format("{}.inputs.safetensors", kCaseName), inputs);
    write_file_atomically(options_.folder / fmt::format("{}.json", kCaseName), description.dump() + "\n");
  }

  const SyntheticExport& options_;
  HostDevice host_;
  Json config_;
  std::vector<DeclaredTensor> weights_;
  std::int64_t total_ = 0;
};

}  // namespace

SyntheticExport synthetic_export_from(std::span<const std::string> words) {
  SyntheticExport options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (!word.starts_with("--")) {
      SHARDPROOF_CHECK(options.folder.empty(), usage_error, "two folders: '{}' and '{}'; expected one",
                       printable(options.folder.native()), printable(word));
      options.folder = word;
      continue;
    }
    SHARDPROOF_CHECK(i + 1 < words.size(), usage_error, "{}: a value is expected", printable(word));
    const std::string_view value = words[++i];
    if (word == "--class") {
      options.class_name = value;
    } else if (word == "--gigabytes") {
      options.gigabytes = number_from<double>(word, value);
    } else if (word == "--tokens") {
      options.tokens = number_from<int>(word, value);
    } else if (word == "--shards") {
      options.shards = number_from<int>(word, value);
    } else if (word == "--seed") {
      options.seed = number_from<std::uint64_t>(word, value);
    } else {
      fail(ErrorKind::usage_error, "'{}' is no option", printable(word));
    }
  }
  SHARDPROOF_CHECK(!options.folder.empty(), usage_error, "no folder was named");
  return options;
}

TemporaryExport::TemporaryExport(const std::string& program)
    : folder_(std::filesystem::temp_directory_path() / fmt::format("{}-{}", program, getpid())) {}

TemporaryExport::~TemporaryExport() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::int64_t write_synthetic_export(const SyntheticExport& options) {
  check(options);
  return Writer(options).write();
}

}  // namespace shardproof::bench
