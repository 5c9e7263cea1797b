// A device whose values are identities: each element says which element of which operand of attention it is. The very
// algorithms that run in numbers run on it, and what they moved to the wrong place, lost or took twice shows as itself.
// Attention on it computes nothing: a row of the result carries the identity of its query, and in the place of the
// log-sum-exp the keys that it has met, with how often. Source: verification specification, section 3.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/host_memory.h"

namespace shardproof {

enum class IdentityRole : std::uint8_t { query, key, value };

// An element of q, k or v in terms of the whole, undivided operands.
struct Identity {
  IdentityRole role = IdentityRole::query;
  std::int64_t batch = 0, token = 0, head = 0, channel = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

// The largest sizes that an identity can carry.
inline constexpr std::int64_t kIdentityBatches = 1 << 6, kIdentityTokens = 1 << 24, kIdentityHeads = 1 << 14,
                              kIdentityChannels = 1 << 14;

// "identity", 8 bytes: the value and wide type of the device.
DType identity_dtype();
// "identity_keys", 8 bytes: what stands in the place of a log-sum-exp, a number known to KeySets.
DType identity_keys_dtype();

std::int64_t packed(const Identity& identity);
// False for what is no identity, such as poison.
bool unpack(std::int64_t bits, Identity& identity);
// "key token 4, head 1, channel 2 of batch entry 0".
std::string text_of(const Identity& identity);

// How often each key was met, as numbers that can travel between ranks. Safe to use from several threads.
class KeySets {
 public:
  using Counts = std::vector<std::uint16_t>;  // by token; tokens beyond the end: 0

  std::int64_t number_of(Counts counts);
  // Empty for a number that was never given out, such as poison; then `is_known` is false.
  Counts counts_of(std::int64_t number, bool& is_known) const;
  std::int64_t sum_of(std::int64_t a, std::int64_t b);

 private:
  mutable std::mutex mutex_;
  std::map<Counts, std::int64_t> numbers_;
  std::vector<const Counts*> by_number_;  // keys of the map
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> sums_;
};

class IdentityDevice final : public HostDevice {
 public:
  // `rank` is named in findings; the sets of all ranks are shared.
  IdentityDevice(std::shared_ptr<KeySets> sets, int rank) : sets_(std::move(sets)), rank_(rank) {}

  // What was in the wrong place when attention or a merge read it; at most a few, in order.
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  std::string_view do_name() const override { return "identity"; }
  bool do_supports(DType dtype) const override;
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override;
  bool do_fuses_softmax_merge(DType out, DType lse) const override;
  void do_softmax_merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) override;

  void find(std::string text);
  // The identity that a row [head_dim] carries, channel 0 first; a finding and false where it does not carry one.
  bool read_row(const Tensor& x, const Shape& at, IdentityRole role, Identity& identity);
  // Of one head; findings where they and their values do not belong together.
  std::vector<Identity> keys_of(const Tensor& k, const Tensor& v, std::int64_t batch, std::int64_t head);

  std::shared_ptr<KeySets> sets_;
  int rank_;
  std::vector<std::string> findings_;
};

}  // namespace shardproof
