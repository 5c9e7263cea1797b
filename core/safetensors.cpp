#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/host_memory.h"
#include "core/json.h"
#include "core/utf8.h"

namespace shardproof {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used as it is");

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kDataAlignment = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

struct StoredType {
  std::string_view name;
  DType dtype;
};
constexpr std::array kStoredTypes{StoredType{"F64", kFloat64},   StoredType{"F32", kFloat32},
                                  StoredType{"BF16", kBFloat16}, StoredType{"F16", kFloat16},
                                  StoredType{"I64", kInt64},     StoredType{"BOOL", kBool}};
// Types that the format has and this program has not.
constexpr std::array<std::string_view, 16> kOtherTypes{
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4",
    "I8",      "I16",     "I32",     "U8",          "U16",         "U32",     "U64",     "C64"};

std::string supported_types() {
  std::string names;
  for (const StoredType& type : kStoredTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

// The header's text; all lengths are checked against the file.
std::string_view header_of(const MappedFile& map) {
  const std::span<const std::byte> bytes = map.bytes();
  SHARDPROOF_CHECK(bytes.size() >= kLengthBytes, file_error,
                   "{}: {} bytes; a safetensors file begins with 8 bytes that hold the length of its header",
                   printable_path(map.path()), bytes.size());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  SHARDPROOF_CHECK(length <= kMaxHeaderBytes, file_error,
                   "{}: bytes 0 to 7 say header length {}; at most {} is allowed (is this a safetensors file?)",
                   printable_path(map.path()), length, kMaxHeaderBytes);
  SHARDPROOF_CHECK(length <= bytes.size() - kLengthBytes, file_error,
                   "{}: a header of {} bytes does not fit into a file of {} bytes; the file is cut short or damaged",
                   printable_path(map.path()), length, bytes.size());
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  SHARDPROOF_CHECK(header.starts_with('{'), file_error, "{}: the header must begin with '{{', got '{}'",
                   printable_path(map.path()), printable(header.substr(0, 1)));
  return header;
}

std::map<std::string, std::string> read_metadata(const Json& json) {
  std::map<std::string, std::string> metadata;
  for (const JsonMember& member : json.members()) metadata.emplace(member.key, member.value.as_string());
  return metadata;
}

DType read_dtype(const std::string& file, const std::string& tensor, const Json& json) {
  const std::string& name = json.as_string();
  for (const StoredType& type : kStoredTypes) {
    if (type.name == name) return type.dtype;
  }
  const bool known = std::find(kOtherTypes.begin(), kOtherTypes.end(), name) != kOtherTypes.end();
  fail(ErrorKind::file_error, "{}: {} dtype {} of tensor '{}'; supported: {}", file, known ? "unsupported" : "unknown",
       printable(json.dump(), 60), printable(tensor), supported_types());
}

Shape read_shape(const std::string& file, const std::string& tensor, const Json& json) {
  const Json::Array& sizes = json.items();
  SHARDPROOF_CHECK(sizes.size() <= static_cast<std::size_t>(kMaxRank), file_error,
                   "{}: tensor '{}' has {} dimensions; at most {} are supported", file, printable(tensor), sizes.size(),
                   kMaxRank);
  Shape shape;
  for (const Json& size : sizes) shape.push_back(size.as_int(0));
  return shape;
}

// Size in bytes. The bound also holds for the sizes beside a zero, so that strides can be computed safely.
std::size_t bytes_of_shape(const std::string& file, const SafetensorsEntry& entry) {
  auto bytes = static_cast<std::int64_t>(entry.dtype.size());
  for (const std::int64_t size : entry.shape) {
    SHARDPROOF_CHECK(!__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes), file_error,
                     "{}: tensor '{}' of shape {} is too large: its size does not fit 64 bits", file,
                     printable(entry.name), entry.shape.text());
  }
  return static_cast<std::size_t>(entry.shape.numel()) * entry.dtype.size();
}

SafetensorsEntry read_entry(const std::string& file, const std::string& name, const Json& json, std::size_t data_size) {
  json.check_keys({"dtype", "shape", "data_offsets"});
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = read_dtype(file, name, json.at("dtype"));
  entry.shape = read_shape(file, name, json.at("shape"));
  const Json& offsets = json.at("data_offsets");
  if (offsets.items().size() != 2) offsets.reject("[begin, end]");
  const std::int64_t begin = offsets.at(std::size_t{0}).as_int(0);
  const std::int64_t end = offsets.at(std::size_t{1}).as_int(0);
  SHARDPROOF_CHECK(begin <= end, file_error, "{}: tensor '{}' has data_offsets [{}, {}]; the begin lies after the end",
                   file, printable(name), begin, end);
  entry.begin = static_cast<std::size_t>(begin);
  entry.end = static_cast<std::size_t>(end);
  const std::size_t expected = bytes_of_shape(file, entry);
  SHARDPROOF_CHECK(entry.end <= data_size, file_error,
                   "{}: tensor '{}' has data_offsets [{}, {}]; the file has only {} bytes of data (is it cut short?)",
                   file, printable(name), begin, end, data_size);
  SHARDPROOF_CHECK(entry.end - entry.begin == expected, file_error,
                   "{}: tensor '{}' has {} bytes (data_offsets [{}, {}]), but {} of shape {} needs {}", file,
                   printable(name), entry.end - entry.begin, begin, end, entry.dtype.name(), entry.shape.text(),
                   expected);
  return entry;
}

// The tensors must cover the data one after the other, in whatever order the header names them.
void check_layout(const std::string& file, std::span<const SafetensorsEntry> entries, std::size_t data_size) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::size_t end = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry* entry : order) {
    SHARDPROOF_CHECK(entry->begin >= end, file_error,
                     "{}: tensors '{}' and '{}' overlap: the first ends at byte {}, the second begins at byte {}", file,
                     printable(previous->name), printable(entry->name), end, entry->begin);
    SHARDPROOF_CHECK(entry->begin == end, file_error,
                     "{}: bytes {} to {} of the data, before tensor '{}', belong to no tensor", file, end, entry->begin,
                     printable(entry->name));
    end = entry->end;
    previous = entry;
  }
  SHARDPROOF_CHECK(end == data_size, file_error,
                   "{}: bytes {} to {} of the data, after the last tensor, belong to no tensor", file, end, data_size);
}

// Start and length for every axis of the entry.
struct Region {
  Shape starts;
  Shape lengths;
};

Region region_of(const SafetensorsEntry& entry, std::span<const AxisRange> ranges) {
  Region region{entry.shape, entry.shape};
  for (std::int64_t& start : std::span(&region.starts[0], static_cast<std::size_t>(region.starts.rank()))) start = 0;
  unsigned seen = 0;
  for (const AxisRange& range : ranges) {
    const int axis = normalised_axis(range.axis, entry.shape.rank());
    SHARDPROOF_CHECK((seen & (1U << static_cast<unsigned>(axis))) == 0, shape_error,
                     "slice of tensor '{}' names axis {} twice", printable(entry.name), axis);
    seen |= 1U << static_cast<unsigned>(axis);
    SHARDPROOF_CHECK(range.start >= 0 && range.length >= 0 && range.start <= entry.shape[axis] - range.length,
                     shape_error, "slice of tensor '{}': {} entries from {} do not lie within axis {} of shape {}",
                     printable(entry.name), range.length, range.start, axis, entry.shape.text());
    region.starts[axis] = range.start;
    region.lengths[axis] = range.length;
  }
  return region;
}

// Copies the region row-major, in runs that are as long as they lie together in the file.
void copy_region(std::span<std::byte> target, std::span<const std::byte> source, const SafetensorsEntry& entry,
                 const Region& region) {
  const Strides strides = entry.shape.contiguous_strides();
  int outer = entry.shape.rank();  // axes [0, outer) are walked, the others form the run
  while (outer > 0 && region.lengths[outer - 1] == entry.shape[outer - 1]) --outer;
  if (outer > 0) --outer;
  std::int64_t run = 1;
  std::int64_t offset = 0;
  for (int axis = 0; axis < entry.shape.rank(); ++axis) {
    if (axis >= outer) run *= region.lengths[axis];
    offset += region.starts[axis] * strides[axis];
  }
  const std::size_t element = entry.dtype.size();
  const std::size_t run_bytes = static_cast<std::size_t>(run) * element;
  Shape position = region.starts;
  while (!target.empty()) {
    std::memcpy(target.data(), source.data() + static_cast<std::size_t>(offset) * element, run_bytes);
    target = target.subspan(run_bytes);
    for (int axis = outer - 1; axis >= 0; --axis) {
      offset += strides[axis];
      if (++position[axis] < region.starts[axis] + region.lengths[axis]) break;
      offset -= region.lengths[axis] * strides[axis];
      position[axis] = region.starts[axis];
    }
  }
}

// Memory of the file; the map lives as long as any tensor over it.
class MappedStorage final : public Storage {
 public:
  MappedStorage(Device& device, std::shared_ptr<const MappedFile> map, std::span<const std::byte> bytes)
      : Storage(device, const_cast<std::byte*>(bytes.data()), bytes.size()), map_(std::move(map)) {}

 private:
  std::shared_ptr<const MappedFile> map_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : map_(std::make_shared<MappedFile>(path)) {
  const std::string file = printable_path(path);
  const std::string_view header = header_of(*map_);
  data_ = map_->bytes().subspan(kLengthBytes + header.size());
  JsonLimits limits;
  limits.max_bytes = kMaxHeaderBytes;
  const Json json = parse_json(header, file + ": header", limits);
  entries_.reserve(json.members().size());
  for (const JsonMember& member : json.members()) {
    if (member.key == kMetadataKey) {
      metadata_ = read_metadata(member.value);
    } else {
      entries_.push_back(read_entry(file, member.key, member.value, data_.size()));
    }
  }
  check_layout(file, entries_, data_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* const entry = find(name);
  if (entry != nullptr) return *entry;
  std::string names;
  for (const SafetensorsEntry& held : entries_) names += (names.empty() ? "" : ", ") + printable(held.name);
  fail(ErrorKind::file_error, "{}: no tensor '{}'; the file holds {}", printable_path(path()), printable(name),
       names.empty() ? "none" : printable(names, 300));
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const { return data_of(at(name)); }

void SafetensorsFile::check_values(const SafetensorsEntry& entry, std::span<const std::byte> bytes) const {
  if (entry.dtype != kBool) return;
  const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; });
  SHARDPROOF_CHECK(wrong == bytes.end(), file_error, "{}: tensor '{}' holds the byte {}; a BOOL is 0 or 1",
                   printable_path(path()), printable(entry.name), std::to_integer<int>(*wrong));
}

Tensor SafetensorsFile::tensor(std::string_view name, Device& device) const {
  const SafetensorsEntry& entry = at(name);
  const std::span<const std::byte> bytes = data_of(entry);
  check_values(entry, bytes);
  bytes_read_.fetch_add(bytes.size(), std::memory_order_relaxed);
  const Tensor tensor = device.upload(bytes, entry.shape, entry.dtype);
  map_->forget(bytes);
  return tensor;
}

Tensor SafetensorsFile::slice(std::string_view name, std::span<const AxisRange> ranges, Device& device) const {
  const SafetensorsEntry& entry = at(name);
  const Region region = region_of(entry, ranges);
  bytes_read_.fetch_add(static_cast<std::size_t>(region.lengths.numel()) * entry.dtype.size(),
                        std::memory_order_relaxed);
  if (Tensor part = mapped_tensor(entry, device); part.defined()) {
    for (int axis = 0; axis < region.starts.rank(); ++axis) {
      part = part.narrow(axis, region.starts[axis], region.lengths[axis]);
    }
    const Tensor copy = device.empty(region.lengths, entry.dtype);
    device.copy(copy, part);
    map_->forget(data_of(entry));
    check_values(entry, {copy.data(), copy.bytes()});
    return copy;
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(region.lengths.numel()) * entry.dtype.size());
  copy_region(bytes, data_of(entry), entry, region);
  map_->forget(data_of(entry));
  check_values(entry, bytes);
  return device.upload(bytes, region.lengths, entry.dtype);
}

Tensor SafetensorsFile::mapped_tensor(const SafetensorsEntry& entry, Device& device) const {
  const std::span<const std::byte> bytes = data_of(entry);
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % entry.dtype.size() == 0;
  const bool on_host = dynamic_cast<HostDevice*>(&device) != nullptr && device.supports(entry.dtype);
  if (!aligned || !on_host) return {};
  return Tensor(std::make_shared<MappedStorage>(device, map_, bytes), entry.dtype, entry.shape,
                entry.shape.contiguous_strides(), 0);
}

Tensor SafetensorsFile::tensor_view(std::string_view name, Device& device) const {
  const SafetensorsEntry& entry = at(name);
  const Tensor view = mapped_tensor(entry, device);
  if (!view.defined()) return tensor(name, device);
  check_values(entry, data_of(entry));
  return view;
}

namespace {

std::string_view stored_name(const DeclaredTensor& declared) {
  for (const StoredType& type : kStoredTypes) {
    if (type.dtype == declared.dtype) return type.name;
  }
  fail(ErrorKind::type_error, "tensor '{}': element type {} cannot be written to a safetensors file",
       printable(declared.name), declared.dtype.name());
}

std::size_t bytes_of(const DeclaredTensor& declared) {
  return static_cast<std::size_t>(declared.shape.numel()) * declared.dtype.size();
}

void check_names(std::span<const DeclaredTensor> tensors, const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const DeclaredTensor& declared : tensors) {
    SHARDPROOF_CHECK(declared.name != kMetadataKey && is_utf8(declared.name), usage_error,
                     "'{}' cannot be the name of a tensor in a safetensors file", printable(declared.name));
    SHARDPROOF_CHECK(names.insert(declared.name).second, usage_error, "tensor '{}' is to be written twice",
                     printable(declared.name));
  }
  for (const auto& [key, text] : metadata) {
    SHARDPROOF_CHECK(is_utf8(key) && is_utf8(text), usage_error, "metadata '{}': '{}' is not UTF-8", printable(key),
                     printable(text));
  }
}

// The header, padded so that the data behind it begins at a multiple of kDataAlignment.
std::string header_text(std::span<const DeclaredTensor> tensors, std::span<const std::size_t> begins,
                        const std::map<std::string, std::string>& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json texts = Json::object();
    for (const auto& [key, text] : metadata) texts.set(key, text);
    header.push_back({std::string(kMetadataKey), std::move(texts)});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Json shape = Json::array();
    for (const std::int64_t size : tensors[i].shape) shape.append(size);
    header.push_back({tensors[i].name,
                      Json::object({{"dtype", stored_name(tensors[i])},
                                    {"shape", std::move(shape)},
                                    {"data_offsets", Json::array({begins[i], begins[i] + bytes_of(tensors[i])})}})});
  }
  std::string text = Json::object(std::move(header)).dump();
  text.resize((text.size() + kLengthBytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment - kLengthBytes, ' ');
  SHARDPROOF_CHECK(text.size() <= kMaxHeaderBytes, usage_error, "a header of {} bytes; the format allows {}",
                   text.size(), kMaxHeaderBytes);
  return text;
}

void write_values(AtomicFile& file, const DeclaredTensor& declared, const Tensor& tensor,
                  std::vector<std::byte>& scratch) {
  SHARDPROOF_CHECK(tensor.has_storage(), usage_error, "tensor '{}' ({}) has no values to write",
                   printable(declared.name), tensor.text());
  SHARDPROOF_CHECK(tensor.dtype() == declared.dtype && tensor.shape() == declared.shape, usage_error,
                   "tensor '{}' is {}, but was announced as {} {}", printable(declared.name), tensor.text(),
                   declared.dtype.name(), declared.shape.text());
  scratch.resize(tensor.bytes());
  tensor.device().download(scratch, tensor);
  file.write(scratch);
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const DeclaredTensor> tensors,
                       const std::function<Tensor(std::size_t)>& values_of,
                       const std::map<std::string, std::string>& metadata) {
  check_names(tensors, metadata);
  // Wide elements first: without padding, every tensor then begins at a multiple of its element size.
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tensors[a].dtype.size() > tensors[b].dtype.size(); });
  std::vector<std::size_t> begins(tensors.size());
  std::size_t end = 0;
  for (const std::size_t i : order) {
    begins[i] = end;
    end += bytes_of(tensors[i]);
  }
  const std::string text = header_text(tensors, begins, metadata);
  const std::uint64_t length = text.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  std::vector<std::byte> scratch;
  for (const std::size_t i : order) write_values(file, tensors[i], values_of(i), scratch);
  file.commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<DeclaredTensor> declared;
  for (const NamedTensor& named : tensors) {
    declared.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
  }
  write_safetensors(path, declared, [&](std::size_t i) { return tensors[i].tensor; }, metadata);
}

}  // namespace shardproof
