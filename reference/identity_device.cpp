#include "reference/identity_device.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr std::size_t kMostFindings = 5;
constexpr std::string_view kRoleNames[] = {"query", "key", "value"};

std::int64_t offset_of(const Tensor& x, const Shape& at) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < at.rank(); ++axis) offset += at[axis] * x.strides()[axis];
  return offset;
}

std::int64_t& element(const Tensor& x, const Shape& at) { return x.data_as<std::int64_t>()[offset_of(x, at)]; }

// All channels of one row; the last axis has unit stride.
void write_row(const Tensor& x, const Shape& at, Identity identity) {
  std::int64_t* row = &element(x, at);
  for (identity.channel = 0; identity.channel < x.size(3); ++identity.channel) row[identity.channel] = packed(identity);
}

}  // namespace

DType identity_keys_dtype() {
  static const DType type = register_dtype({"identity_keys", sizeof(std::int64_t), DTypeCategory::log_mass});
  return type;
}

DType identity_dtype() {
  static const DType type = [] {
    const DType registered = register_dtype({"identity", sizeof(std::int64_t), DTypeCategory::exact});
    set_related_dtypes(registered, registered, identity_keys_dtype());
    return registered;
  }();
  return type;
}

std::int64_t packed(const Identity& identity) {
  SHARDPROOF_CHECK(identity.batch < kIdentityBatches && identity.token < kIdentityTokens &&
                       identity.head < kIdentityHeads && identity.channel < kIdentityChannels,
                   shape_error, "{} is more than an identity can carry", text_of(identity));
  std::int64_t bits = static_cast<std::int64_t>(identity.role);
  bits = bits * kIdentityBatches + identity.batch;
  bits = bits * kIdentityTokens + identity.token;
  bits = bits * kIdentityHeads + identity.head;
  return bits * kIdentityChannels + identity.channel;
}

bool unpack(std::int64_t bits, Identity& identity) {
  if (bits < 0) return false;
  const auto take = [&](std::int64_t size) {
    const std::int64_t part = bits % size;
    bits /= size;
    return part;
  };
  identity.channel = take(kIdentityChannels);
  identity.head = take(kIdentityHeads);
  identity.token = take(kIdentityTokens);
  identity.batch = take(kIdentityBatches);
  identity.role = static_cast<IdentityRole>(bits);
  return bits <= static_cast<std::int64_t>(IdentityRole::value);
}

std::string text_of(const Identity& identity) {
  return fmt::format("{} token {}, head {}, channel {} of batch entry {}",
                     kRoleNames[static_cast<std::size_t>(identity.role)], identity.token, identity.head,
                     identity.channel, identity.batch);
}

std::int64_t KeySets::number_of(Counts counts) {
  while (!counts.empty() && counts.back() == 0) counts.pop_back();
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = numbers_.try_emplace(std::move(counts), static_cast<std::int64_t>(by_number_.size()));
  if (is_new) by_number_.push_back(&entry->first);
  return entry->second;
}

KeySets::Counts KeySets::counts_of(std::int64_t number, bool& is_known) const {
  const std::lock_guard lock(mutex_);
  is_known = number >= 0 && number < static_cast<std::int64_t>(by_number_.size());
  return is_known ? *by_number_[static_cast<std::size_t>(number)] : Counts();
}

std::int64_t KeySets::sum_of(std::int64_t a, std::int64_t b) {
  const std::pair key(std::min(a, b), std::max(a, b));
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = sums_.find(key); known != sums_.end()) return known->second;
  }
  bool is_known_a = false, is_known_b = false;
  Counts sum = counts_of(a, is_known_a);
  const Counts other = counts_of(b, is_known_b);
  if (!is_known_a || !is_known_b) return -1;
  sum.resize(std::max(sum.size(), other.size()));
  for (std::size_t token = 0; token < other.size(); ++token) {
    sum[token] = static_cast<std::uint16_t>(sum[token] + other[token]);
  }
  const std::int64_t number = number_of(std::move(sum));
  const std::lock_guard lock(mutex_);
  sums_.emplace(key, number);
  return number;
}

bool IdentityDevice::do_supports(DType dtype) const {
  return dtype == identity_dtype() || dtype == identity_keys_dtype() || dtype == kBool || dtype == kInt64;
}

void IdentityDevice::find(std::string text) {
  if (findings_.size() < kMostFindings) findings_.push_back(fmt::format("rank {}: {}", rank_, text));
}

bool IdentityDevice::read_row(const Tensor& x, const Shape& at, IdentityRole role, Identity& identity) {
  const std::int64_t* row = &element(x, at);
  for (std::int64_t channel = 0; channel < x.size(3); ++channel) {
    Identity found;
    const bool is_identity = unpack(row[channel], found);
    if (channel == 0) identity = found;
    Identity expected = identity;
    expected.role = role;
    expected.channel = channel;
    if (is_identity && found == expected) continue;
    find(fmt::format("attention was given {} where its {} at position {} of head {} was to have channel {}",
                     is_identity ? text_of(found) : std::string("memory that nothing was received into"),
                     kRoleNames[static_cast<std::size_t>(role)], at[1], at[2], channel));
    return false;
  }
  return true;
}

std::vector<Identity> IdentityDevice::keys_of(const Tensor& k, const Tensor& v, std::int64_t batch, std::int64_t head) {
  std::vector<Identity> keys(static_cast<std::size_t>(k.size(1)));
  for (std::int64_t j = 0; j < k.size(1); ++j) {
    Identity& key = keys[static_cast<std::size_t>(j)];
    Identity value;
    if (!read_row(k, {batch, j, head}, IdentityRole::key, key)) continue;
    if (!read_row(v, {batch, j, head}, IdentityRole::value, value)) continue;
    value.role = IdentityRole::key;
    if (value != key) find(fmt::format("the value of {} came with {}", text_of(value), text_of(key)));
    if (key.head != keys.front().head || key.batch != keys.front().batch) {
      find(fmt::format("{} came with {}", text_of(key), text_of(keys.front())));
    }
  }
  return keys;
}

void IdentityDevice::do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& mask, double) {
  poison(dst.out);
  poison(dst.lse);
  KeySets::Counts counts;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    for (std::int64_t h = 0; h < q.size(2); ++h) {
      const std::vector<Identity> keys = keys_of(k, v, b, h);
      std::int64_t number = -1;
      for (std::int64_t i = 0; i < q.size(1); ++i) {
        Identity query;
        if (!read_row(q, {b, i, h}, IdentityRole::query, query)) continue;
        if (!keys.empty() && (keys.front().head != query.head || keys.front().batch != query.batch)) {
          find(fmt::format("{} met {}", text_of(query), text_of(keys.front())));
        }
        if (number < 0 || mask.defined()) {
          counts.clear();
          for (std::size_t j = 0; j < keys.size(); ++j) {
            const auto at = static_cast<std::int64_t>(j);
            if (mask.defined() && !mask.data_as<bool>()[offset_of(mask, {b, h, i, at})]) continue;
            const auto token = static_cast<std::size_t>(keys[j].token);
            if (counts.size() <= token) counts.resize(token + 1);
            ++counts[token];
          }
          number = sets_->number_of(counts);
        }
        write_row(dst.out, {b, i, h}, query);
        element(dst.lse, {b, i, h}) = number;
      }
    }
  }
}

bool IdentityDevice::do_fuses_softmax_merge(DType out, DType lse) const {
  return out == identity_dtype() && lse == identity_keys_dtype();
}

void IdentityDevice::do_softmax_merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) {
  poison(dst.out);
  poison(dst.lse);
  const Shape& rows = dst.lse.shape();
  for (std::int64_t row = 0; row < rows.numel(); ++row) {
    const Shape at{row / (rows[1] * rows[2]), row / rows[2] % rows[1], row % rows[2]};
    Identity of_a, of_b;
    if (!read_row(a.out, at, IdentityRole::query, of_a) || !read_row(b.out, at, IdentityRole::query, of_b)) continue;
    if (of_a != of_b) find(fmt::format("partial results of {} and {} were merged", text_of(of_a), text_of(of_b)));
    write_row(dst.out, at, of_a);
    element(dst.lse, at) = sets_->sum_of(element(a.lse, at), element(b.lse, at));
  }
}

}  // namespace shardproof
