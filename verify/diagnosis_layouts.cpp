#include "verify/diagnosis_layouts.h"

#include <algorithm>
#include <numeric>

#include "verify/diagnosis.h"
#include "verify/signature.h"

namespace shardproof {
namespace {

std::int64_t total_of(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

struct AxisPart {
  std::string text;
  std::vector<std::int64_t> entries;
};

// What a rank can hold `local` of `total` entries of: one piece of a group's division, or one piece of each of several
// streams.
std::vector<AxisPart> parts_of_axis(std::int64_t total, std::int64_t local, int axis, const RankPlaces& places,
                                    const Divisions& divisions) {
  std::vector<AxisPart> parts;
  std::vector<std::vector<std::int64_t>> streams(divisions.streams.begin(), divisions.streams.end());
  // A length that the plan divides is more likely one sequence than two.
  const bool is_sequence = divisions.streams.contains({total, total});
  streams.insert(is_sequence ? streams.begin() : streams.end(), {total});
  if (!divisions.packed.empty() && total_of(divisions.packed) == total) streams = {divisions.packed};
  for (const Place& place : {places.context, places.tensor}) {
    for (const std::vector<std::int64_t>& lengths : streams) {
      if (place.members < 2 || total_of(lengths) != total) continue;
      std::vector<std::int64_t> entries = entries_of(lengths, place);
      if (static_cast<std::int64_t>(entries.size()) != local) continue;
      const std::string text =
          lengths.size() > 1 ? fmt::format("its parts of {} along axis {}", fmt::join(lengths, " + "), axis)
          : entries.empty()
              ? fmt::format("nothing along axis {}", axis)
              : fmt::format("entries {} to {} of {} along axis {}", entries.front(), entries.back(), total, axis);
      parts.push_back({text, std::move(entries)});
    }
  }
  return parts;
}

// Where the elements of a rank's part stand in the dense tensor, in order.
std::vector<std::int64_t> places_in_dense(const Layout& layout, const Shape& dense, const Shape& local) {
  const Shape strides = dense.contiguous_strides();
  std::vector<std::int64_t> places(static_cast<std::size_t>(local.numel()));
  for (std::int64_t at = 0; at < local.numel(); ++at) {
    std::int64_t rest = at;
    for (int axis = local.rank() - 1; axis >= 0; --axis) {
      const auto index = static_cast<std::size_t>(rest % local[axis]);
      places[static_cast<std::size_t>(at)] += layout.entries[static_cast<std::size_t>(axis)][index] * strides[axis];
      rest /= local[axis];
    }
  }
  return places;
}

}  // namespace

std::vector<Layout> possible_layouts(const Shape& dense, const Shape& local, const RankPlaces& places,
                                     const Divisions& divisions) {
  if (dense.rank() != local.rank()) return {};
  std::vector<Layout> layouts{{}};
  for (int axis = 0; axis < dense.rank(); ++axis) {
    std::vector<AxisPart> parts;
    if (dense[axis] == local[axis]) {
      parts.push_back({"", entries_of({dense[axis]}, {})});
    } else {
      parts = parts_of_axis(dense[axis], local[axis], axis, places, divisions);
    }
    std::vector<Layout> extended;
    for (const Layout& layout : layouts) {
      for (const AxisPart& part : parts) {
        Layout& next = extended.emplace_back(layout);
        if (!part.text.empty()) next.text += (next.text.empty() ? "" : ", ") + part.text;
        next.entries.push_back(part.entries);
      }
    }
    layouts = std::move(extended);
  }
  for (Layout& layout : layouts) {
    if (layout.text.empty()) layout.text = "the whole";
  }
  return layouts;
}

std::string looks_like(const Layout& layout, const Elements& dense, const Elements& local, double allowed, int ranks) {
  const Shape& shape = local.shape();
  constexpr std::int64_t kMostElements = std::int64_t{1} << 22;
  if (shape.rank() == 0 || shape.numel() == 0 || dense.shape().numel() > kMostElements) return {};
  std::map<std::string, double> names;
  SignatureInput input{.channels = static_cast<std::size_t>(shape[shape.rank() - 1]),
                       .are_numbers = local.are_numbers(),
                       .allowed = allowed,
                       .ranks = ranks};
  for (std::int64_t at = 0; at < shape.numel(); ++at) input.actual.push_back(local.number(at, names));
  for (const std::int64_t at : places_in_dense(layout, dense.shape(), shape))
    input.expected.push_back(dense.number(at, names));
  if (dense.shape()[dense.shape().rank() - 1] == shape[shape.rank() - 1]) {
    for (std::int64_t at = 0; at < dense.shape().numel(); ++at) input.whole.push_back(dense.number(at, names));
  }
  return signature_of(input);
}

Mismatch mismatch_under(const Layout& layout, const Elements& dense, const Elements& local, double allowed) {
  Mismatch result;
  const Shape& shape = local.shape();
  const Shape strides = dense.shape().contiguous_strides();
  for (int axis = 0; axis < shape.rank(); ++axis) result.places.emplace_back(static_cast<std::size_t>(shape[axis]));
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()), 0);
  double largest = 0.0;
  for (std::int64_t at = 0; at < shape.numel(); ++at) {
    std::int64_t in_dense = 0, rest = at;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      index[a] = rest % shape[axis];
      rest /= shape[axis];
      in_dense += layout.entries[a][static_cast<std::size_t>(index[a])] * strides[axis];
    }
    const double distance = local.distance(at, dense, in_dense, allowed);
    if (distance == 0.0) continue;
    ++result.wrong;
    for (std::size_t a = 0; a < index.size(); ++a) result.places[a][static_cast<std::size_t>(index[a])] = true;
    if (distance <= largest) continue;
    largest = distance;
    result.worst = at;
    result.worst_dense = in_dense;
  }
  return result;
}

std::string extent_of(const Mismatch& mismatch, std::int64_t elements) {
  if (mismatch.wrong == elements) return "every element";
  std::string text;
  for (std::size_t axis = 0; axis < mismatch.places.size(); ++axis) {
    const std::vector<bool>& wrong = mismatch.places[axis];
    if (std::all_of(wrong.begin(), wrong.end(), [](bool is_wrong) { return is_wrong; })) continue;
    text += fmt::format("{}axis {}: {}", text.empty() ? "" : "; ", axis, places_text(wrong));
  }
  return fmt::format("{} of {} elements{}{}", mismatch.wrong, elements, text.empty() ? "" : ", ", text);
}

}  // namespace shardproof
