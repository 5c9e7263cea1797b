// What goes over the wire between the store and its clients: fixed headers of little-endian numbers, followed by a key
// and a value of stated and bounded lengths. A connection opens with the client's hello and the server's reply to it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardproof {

inline constexpr std::string_view kStoreMagic = "SHRDPRF\n";  // eight bytes; the line end shows conversions of text
inline constexpr std::uint32_t kStoreVersion = 1;
inline constexpr std::size_t kMaxStoreKeyBytes = 256;
inline constexpr std::size_t kMaxStoreValueBytes = std::size_t{1} << 20;

// Says who connects. Magic and version stand first in every version of the protocol.
struct StoreHello {
  std::uint32_t version = kStoreVersion;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint64_t run = 0;
  std::uint64_t configuration = 0;

  static constexpr std::size_t kBytes = 8 + 4 + 4 + 4 + 8 + 8;
  std::string encoded() const;
  // Nothing if the magic is another.
  static std::optional<StoreHello> decoded(std::string_view bytes);
};

enum class StoreCall : std::uint8_t { set = 1, get, wait, add, barrier };
std::string_view store_call_name(StoreCall call);

struct StoreRequest {
  StoreCall call = StoreCall::set;
  std::string key;
  std::string value;                      // of set
  std::int64_t delta = 0;                 // of add
  std::chrono::milliseconds patience{0};  // for how long the server may let it wait

  static constexpr std::size_t kHeaderBytes = 1 + 4 + 4 + 8 + 4;
  std::string encoded() const;
  struct Header {
    StoreCall call = StoreCall::set;
    std::size_t key_bytes = 0;
    std::size_t value_bytes = 0;
    std::int64_t delta = 0;
    std::chrono::milliseconds patience{0};
  };
  // Nothing for an unknown call or a length out of bounds.
  static std::optional<Header> decoded_header(std::string_view bytes);
};

enum class StoreAnswer : std::uint8_t {
  done = 1,
  timed_out,  // the text says for what or whom it waited
  refused,    // the text says why
  other_run,  // to a hello of a rank that belongs elsewhere; its own store may be on another port
};

struct StoreReply {
  StoreAnswer answer = StoreAnswer::done;
  std::int64_t number = 0;  // of add
  std::string text;         // value of get, or words

  static constexpr std::size_t kHeaderBytes = 1 + 8 + 4;
  std::string encoded() const;
  struct Header {
    StoreAnswer answer = StoreAnswer::done;
    std::int64_t number = 0;
    std::size_t text_bytes = 0;
  };
  static std::optional<Header> decoded_header(std::string_view bytes);
};

}  // namespace shardproof
