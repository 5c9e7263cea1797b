#include "real/store_message.h"

#include <limits>
#include <type_traits>

#include "core/error.h"

namespace shardproof {
namespace {

template <class Number>
void append(std::string& bytes, Number number) {
  auto rest = static_cast<std::make_unsigned_t<Number>>(number);
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(rest & 0xffU));
    if constexpr (sizeof(Number) > 1) rest = static_cast<decltype(rest)>(rest >> 8U);
  }
}

// Takes a number from the front.
template <class Number>
Number taken(std::string_view& bytes) {
  using Unsigned = std::make_unsigned_t<Number>;
  Unsigned number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    const auto byte = static_cast<Unsigned>(static_cast<unsigned char>(bytes[i]));
    number = static_cast<Unsigned>(number | static_cast<Unsigned>(byte << (8 * i)));
  }
  bytes.remove_prefix(sizeof(Number));
  return static_cast<Number>(number);
}

}  // namespace

std::string StoreHello::encoded() const {
  std::string bytes(kStoreMagic);
  append(bytes, version);
  append(bytes, rank);
  append(bytes, world_size);
  append(bytes, run);
  append(bytes, configuration);
  return bytes;
}

std::optional<StoreHello> StoreHello::decoded(std::string_view bytes) {
  if (bytes.size() != kBytes || !bytes.starts_with(kStoreMagic)) return std::nullopt;
  bytes.remove_prefix(kStoreMagic.size());
  StoreHello hello;
  hello.version = taken<std::uint32_t>(bytes);
  hello.rank = taken<std::uint32_t>(bytes);
  hello.world_size = taken<std::uint32_t>(bytes);
  hello.run = taken<std::uint64_t>(bytes);
  hello.configuration = taken<std::uint64_t>(bytes);
  return hello;
}

std::string_view store_call_name(StoreCall call) {
  switch (call) {
    case StoreCall::set: return "set";
    case StoreCall::get: return "get";
    case StoreCall::wait: return "wait";
    case StoreCall::add: return "add";
    case StoreCall::barrier: return "barrier";
  }
  fail(ErrorKind::internal_error, "store call {} does not exist", static_cast<int>(call));
}

std::string StoreRequest::encoded() const {
  std::string bytes;
  append(bytes, static_cast<std::uint8_t>(call));
  append(bytes, static_cast<std::uint32_t>(key.size()));
  append(bytes, static_cast<std::uint32_t>(value.size()));
  append(bytes, delta);
  append(bytes, static_cast<std::uint32_t>(patience.count()));
  return bytes + key + value;
}

std::optional<StoreRequest::Header> StoreRequest::decoded_header(std::string_view bytes) {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  const auto call = taken<std::uint8_t>(bytes);
  Header header;
  header.key_bytes = taken<std::uint32_t>(bytes);
  header.value_bytes = taken<std::uint32_t>(bytes);
  header.delta = taken<std::int64_t>(bytes);
  header.patience = std::chrono::milliseconds(taken<std::uint32_t>(bytes));
  if (call < static_cast<std::uint8_t>(StoreCall::set) || call > static_cast<std::uint8_t>(StoreCall::barrier))
    return {};
  header.call = static_cast<StoreCall>(call);
  const std::size_t most = header.call == StoreCall::set ? kMaxStoreValueBytes : 0;
  if (header.key_bytes == 0 || header.key_bytes > kMaxStoreKeyBytes || header.value_bytes > most) return {};
  return header;
}

std::string StoreReply::encoded() const {
  std::string bytes;
  append(bytes, static_cast<std::uint8_t>(answer));
  append(bytes, number);
  append(bytes, static_cast<std::uint32_t>(text.size()));
  return bytes + text;
}

std::optional<StoreReply::Header> StoreReply::decoded_header(std::string_view bytes) {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  const auto answer = taken<std::uint8_t>(bytes);
  Header header;
  header.number = taken<std::int64_t>(bytes);
  header.text_bytes = taken<std::uint32_t>(bytes);
  if (answer < static_cast<std::uint8_t>(StoreAnswer::done) ||
      answer > static_cast<std::uint8_t>(StoreAnswer::other_run)) {
    return {};
  }
  header.answer = static_cast<StoreAnswer>(answer);
  if (header.text_bytes > kMaxStoreValueBytes) return {};
  return header;
}

}  // namespace shardproof
