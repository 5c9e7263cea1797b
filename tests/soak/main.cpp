// Runs attentions and models of random legal configurations in exact arithmetic and counts false alarms; status 1 if
// there is one. The seed is printed, and with it every alarm can be run again alone.
// usage: exact_soak [--full] [--seed N] [--attention INDEX | --model INDEX]
#include <omp.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "tests/soak/soak.h"

namespace shardproof::soak {

namespace {

using Soak = Outcome (*)(std::uint64_t seed, std::uint64_t index);

struct Request {
  bool full = false;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> attention;
  std::optional<std::uint64_t> model;
};

// Returns the number of alarms.
int run(std::string_view name, Soak soak, std::uint64_t seed, std::uint64_t first, std::uint64_t count) {
  const auto start = std::chrono::steady_clock::now();
  int alarms = 0, redrawn = 0, refused = 0;
  for (std::uint64_t index = first; index < first + count; ++index) {
    Outcome outcome;
    try {
      outcome = soak(seed, index);
    } catch (const Error& error) {
      outcome.alarm = error.what();
    }
    redrawn += outcome.redrawn ? 1 : 0;
    refused += outcome.counts ? 0 : 1;
    if (outcome.alarm.empty()) continue;
    ++alarms;
    fmt::print("ALARM: {}\n  again: exact_soak --seed {} --{} {}\n", outcome.alarm, seed, name, index);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} configurations, {} false alarms, {} decided by another seed, {} refused, {:.0f} s\n", name, count,
             alarms, redrawn, refused, seconds);
  std::fflush(stdout);
  return alarms;
}

bool read_number(std::string_view word, std::uint64_t& value) {
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
  return status == std::errc{} && end == word.data() + word.size();
}

bool read_request(int count, char** words, Request& request) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    std::uint64_t value = 0;
    if (word == "--full") {
      request.full = true;
      continue;
    }
    if (++i == count || !read_number(words[i], value)) return false;
    if (word == "--seed") {
      request.seed = value;
    } else if (word == "--attention") {
      request.attention = value;
    } else if (word == "--model") {
      request.model = value;
    } else {
      return false;
    }
  }
  return true;
}

int run(const Request& request) {
  omp_set_num_threads(1);
  fmt::print("seed {}\n", request.seed);
  if (request.attention) return run("attention", soak_attention, request.seed, *request.attention, 1);
  if (request.model) return run("model", soak_model, request.seed, *request.model, 1);
  const int alarms = run("attention", soak_attention, request.seed, 0, request.full ? 1'000'000 : 10'000);
  return alarms + run("model", soak_model, request.seed, 0, request.full ? 20'000 : 200);
}

}  // namespace
}  // namespace shardproof::soak

int main(int count, char** words) {
  shardproof::soak::Request request;
  // Another one in each run, unless it is given.
  request.seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000'000;
  if (!shardproof::soak::read_request(count, words, request)) {
    fmt::print(stderr, "usage: exact_soak [--full] [--seed N] [--attention INDEX | --model INDEX]\n");
    return 2;
  }
  try {
    return shardproof::soak::run(request) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "exact_soak: {}\n", error.what());
    return 3;
  }
}
