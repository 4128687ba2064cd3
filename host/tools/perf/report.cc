#include "host/tools/perf/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "host/tools/version.h"

namespace gatun::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kPacketHeaderBytes = 32;  // Gatun's own, in gatun_stats_t's bytes on the wire

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
}

double gigabytes_per_s(double bytes, double us) {
  return us > 0 ? bytes / us / 1e3 : 0;
}

std::string time_stamp() {
  char text[32];
  const time_t now = std::time(nullptr);
  tm local;
  localtime_r(&now, &local);
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string redop(const Shape& shape) {
  return has_op(shape.collective) ? op_name(shape.op) : "none";
}
int root(const Shape& shape) {
  return has_root(shape.collective) ? shape.root : -1;
}

void line(const std::string& text) {
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

std::string preamble(const Shape& shape) {
  return fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", shape.bytes(), shape.count, type_name(shape.type), redop(shape),
                     root(shape));
}

Json json_shape(const Shape& shape) {
  return Json{{"size", shape.bytes()},
              {"count", shape.count},
              {"type", type_name(shape.type)},
              {"redop", redop(shape)},
              {"root", root(shape)}};
}

}  // namespace

struct Report::State {
  explicit State(const Options& o) : options(o) {}
  const Options& options;
  Json json;
  uint64_t wrong = 0;
  double bus_total = 0;
  int bus_values = 0;
  double worst_ratio = std::numeric_limits<double>::infinity();
  std::string worst_row;

  double shown_us(const Timing& timing) const { return options.report_cpu ? timing.cpu_us : timing.us; }
  std::string half(const Shape& shape, const Timing& timing);
  Json json_half(const Shape& shape, const Timing& timing) const;
  void print_ranks(const RunInfo& info);
  void print_columns();
  void print_comparison_columns();
};

std::string fit(double value, int width) {
  for (int decimals = 2; decimals >= 0; --decimals) {
    std::string text = fmt::format("{:.{}f}", value, decimals);
    if (static_cast<int>(text.size()) <= width) return text;
  }
  return fmt::format("{:.0e}", value);
}

double Contestant::median_us() const {
  return quantile(us, 0.5);
}
double Contestant::spread() const {
  return us.empty() ? 0 : (quantile(us, 0.75) - quantile(us, 0.25)) / std::max(median_us(), 1e-9);
}

Report::Report(const Options& options) : state_(std::make_unique<State>(options)) {}
Report::~Report() = default;
uint64_t Report::wrong() const {
  return state_->wrong;
}

void Report::State::print_ranks(const RunInfo& info) {
  line("# Using ranks");
  for (size_t rank = 0; rank < info.ranks.size(); ++rank) {
    line(fmt::format("#  Rank {:2} Pid {:6} on {:>10}", rank, info.ranks[rank].pid, info.ranks[rank].host));
  }
  const gatun_stats_t& stats = info.stats;
  if (std::strcmp(stats.transport, "self") == 0) {
    line("# Switch: none, one rank needs none");
  } else if (stats.why[0] != 0) {
    line(fmt::format("# Switch: none, transport {}: {}", stats.transport, stats.why));
  } else {
    line(fmt::format("# Switch: {}{}, transport {}, payload {} bytes, trees {}, window {}", stats.address,
                     info.own_switch ? " (started for this run)" : "", stats.transport, stats.payload_bytes, stats.trees,
                     stats.window));
  }
  for (const std::string& peer : info.peers) line("# " + peer);
}

void Report::State::print_columns() {
  const char* time = options.report_cpu ? "cputime" : "time";
  const auto columns = [&](const char* size, const char* count, const char* type, const char* op, const char* top,
                           const char* t, const char* bw, const char* wrong, const char* wire, const char* resent,
                           const char* stamp) {
    line(fmt::format(
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}{}",
        size, count, type, op, top, t, *bw ? bw : "algbw", *bw ? bw : "busbw", wrong, t, *bw ? bw : "algbw",
        *bw ? bw : "busbw", wrong, wire, resent, stamp));
  };
  line(fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          ",
                   "", "", "", "", ""));
  columns("size", "count", "type", "redop", "root", time, "", "#wrong", "wirebw", "resent",
          options.report_timestamps ? "            timestamp" : "");
  columns("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "", "(GB/s)", "",
          options.report_timestamps ? "  YYYY-MM-DD hh:mm:ss" : "");
}

void Report::State::print_comparison_columns() {
  std::string names =
      fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}", "size", "count",
                  "type", "redop", "root", "time", "spread", "algbw", "busbw", "#wrong", "wirebw", "resent");
  std::string units = fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}",
                                  "(B)", "(elements)", "", "", "", "(us)", "(%)", "(GB/s)", "(GB/s)", "", "(GB/s)", "");
  std::string titles = fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:^53}", "", "", "", "", "", "gatun, in place");
  for (const std::string& peer : options.peers) {
    titles += fmt::format("  | {:^{}}", peer, peer == "gloo" ? 51 : 33);
    names += fmt::format("  | {:>7}  {:>6}  {:>6}  {:>8}", "time", "spread", "algbw", "ratio");
    units += fmt::format("  | {:>7}  {:>6}  {:>6}  {:>8}", "(us)", "(%)", "(GB/s)", "to gatun");
    if (peer == "gloo") {
      names += fmt::format("  {:>16}", "algorithm");
      units += fmt::format("  {:>16}", "(best)");
    }
  }
  line(titles);
  line(names);
  line(units);
}

void Report::begin(const RunInfo& info) {
  const Options& o = state_->options;
  line(fmt::format("# gatun perf version {}", version_text()));
  line(fmt::format("# Collective test starting: {}", name(o.collective)));
  line(fmt::format(
      "# nRanks {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} validation: {} unalign: {}",
      info.ranks.size(), o.bytes_min, o.bytes_max, o.step_factor > 1 ? static_cast<uint64_t>(o.step_factor) : o.step_bytes,
      o.step_factor > 1 ? "factor" : "bytes", o.warmup_iters,
      o.peers.empty() || o.iters_given ? std::to_string(o.iters) : "chosen per row", o.aggregate, o.check_iters, o.unalign));
  line("#");
  state_->print_ranks(info);
  line("#");
  if (o.peers.empty()) {
    state_->print_columns();
  } else {
    line("# In turns, in place; time is the median over repetitions, spread the quartiles' distance over the median.");
    line("# ratio = the peer's time / Gatun's time: above 1 Gatun is faster.");
    line("#");
    state_->print_comparison_columns();
  }

  Json& json = state_->json;
  json["version"] = version_text();
  json["collective"] = name(o.collective);
  json["config"] = Json{{"ranks", info.ranks.size()},
                        {"minimum_bytes", o.bytes_min},
                        {"maximum_bytes", o.bytes_max},
                        {"step_factor", o.step_factor},
                        {"step_bytes", o.step_bytes},
                        {"warmup_iters", o.warmup_iters},
                        {"iterations", o.iters},
                        {"aggregated_iterations", o.aggregate},
                        {"validation", o.check_iters},
                        {"average", static_cast<int>(o.average)},
                        {"unalign", o.unalign},
                        {"seed", o.seed},
                        {"blocking_collectives", o.blocking},
                        {"launcher", info.launcher},
                        {"peers", info.peers}};
  json["switch"] = Json{{"address", info.stats.address},     {"own", info.own_switch},
                        {"transport", info.stats.transport}, {"payload_bytes", info.stats.payload_bytes},
                        {"trees", info.stats.trees},         {"window", info.stats.window}};
  json["ranks"] = Json::array();
  for (size_t rank = 0; rank < info.ranks.size(); ++rank) {
    json["ranks"].push_back(Json{{"rank", rank}, {"pid", info.ranks[rank].pid}, {"hostname", info.ranks[rank].host}});
  }
  json["results"] = Json::array();
}

std::string Report::State::half(const Shape& shape, const Timing& timing) {
  const double algbw = gigabytes_per_s(static_cast<double>(shape.bytes()), shown_us(timing));
  bus_total += algbw * shape.bus_factor();
  ++bus_values;
  wrong += timing.wrong;
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", fit(shown_us(timing), 7), fit(algbw, 6),
                     fit(algbw * shape.bus_factor(), 6), timing.checked ? std::to_string(timing.wrong) : "N/A");
}

Json Report::State::json_half(const Shape& shape, const Timing& timing) const {
  const double algbw = gigabytes_per_s(static_cast<double>(shape.bytes()), shown_us(timing));
  return Json{{options.report_cpu ? "cpu_time" : "time", shown_us(timing)},
              {"alg_bw", algbw},
              {"bus_bw", algbw * shape.bus_factor()},
              {"nwrong", timing.checked ? Json(timing.wrong) : Json()},
              {"cpu_us", timing.cpu_us},
              {"wire_bytes", timing.wire_bytes},
              {"wire_bw", gigabytes_per_s(timing.wire_bytes, timing.us)},
              {"resent", timing.resent}};
}

void Report::row(const Shape& shape, const Timing& out_of_place, const Timing& in_place) {
  State& s = *state_;
  std::string text = preamble(shape) + s.half(shape, out_of_place) + s.half(shape, in_place);
  const double wire_bw = gigabytes_per_s(out_of_place.wire_bytes + in_place.wire_bytes, out_of_place.us + in_place.us);
  text += fmt::format("  {:>6}  {:>6}", fit(wire_bw, 6), out_of_place.resent + in_place.resent);
  if (s.options.report_timestamps) text += "  " + time_stamp();
  line(text);
  Json row = json_shape(shape);
  row["out_of_place"] = s.json_half(shape, out_of_place);
  row["in_place"] = s.json_half(shape, in_place);
  row["wire_bw"] = wire_bw;
  row["resent"] = out_of_place.resent + in_place.resent;
  s.json["results"].push_back(std::move(row));
}

void Report::comparison(const Shape& shape, const Timing& ours, const std::vector<Contestant>& best,
                        const std::vector<Contestant>& all) {
  State& s = *state_;
  const double bytes = static_cast<double>(shape.bytes());
  const double our_us = ours.us;
  const double algbw = gigabytes_per_s(bytes, our_us);
  s.wrong += ours.wrong;
  s.bus_total += algbw * shape.bus_factor();
  ++s.bus_values;
  std::string text = preamble(shape) + fmt::format("  {:>7}  {:>6.1f}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}", fit(our_us, 7),
                                                   all[0].spread() * 100, fit(algbw, 6), fit(algbw * shape.bus_factor(), 6),
                                                   ours.checked ? std::to_string(ours.wrong) : "N/A",
                                                   fit(gigabytes_per_s(ours.wire_bytes, our_us), 6), ours.resent);
  Json row = json_shape(shape);
  row["in_place"] = s.json_half(shape, ours);
  row["peers"] = Json::object();
  for (const Contestant& peer : best) {
    const double ratio = peer.median_us() / std::max(our_us, 1e-9);
    text += fmt::format("  | {:>7}  {:>6.1f}  {:>6}  {:>8.2f}", fit(peer.median_us(), 7), peer.spread() * 100,
                        fit(gigabytes_per_s(bytes, peer.median_us()), 6), ratio);
    if (peer.name == "gloo") text += fmt::format("  {:>16}", peer.variant);
    row["peers"][peer.name] = Json{{"time", peer.median_us()},
                                   {"alg_bw", gigabytes_per_s(bytes, peer.median_us())},
                                   {"variant", peer.variant},
                                   {"ratio", ratio}};
    if (ratio < s.worst_ratio) {
      s.worst_ratio = ratio;
      s.worst_row = format_size(shape.bytes()) + " vs " + peer.name;
      if (s.options.types.size() > 1 || s.options.ops.size() > 1) {
        s.worst_row += fmt::format(", {} {}", type_name(shape.type), op_name(shape.op));
      }
    }
  }
  row["repetitions"] = Json::array();
  for (const Contestant& each : all) {
    row["repetitions"].push_back(Json{{"name", each.name},
                                      {"variant", each.variant},
                                      {"iterations", each.iters},
                                      {"us", each.us},
                                      {"cpu_us", each.cpu_us}});
  }
  s.json["results"].push_back(std::move(row));
  line(text);
}

std::string Report::end(const gatun_stats_t& stats) {
  State& s = *state_;
  const uint64_t packets = stats.packets_sent + stats.packets_received;
  const uint64_t carried = stats.wire_bytes_sent + stats.wire_bytes_received - packets * kPacketHeaderBytes;
  const double copies = carried > 0 ? static_cast<double>(stats.payload_bytes_copied) / static_cast<double>(carried) : 0;
  const double bus = s.bus_values > 0 ? s.bus_total / s.bus_values : 0;
  line(fmt::format("# {:<20} : {} {}", "Out of bounds values", s.wrong, s.wrong == 0 ? "OK" : "FAILED"));
  line(fmt::format("# {:<20} : {:.6g} ", "Avg bus bandwidth", bus));
  line(fmt::format("# {:<20} : {:.2f} (of what the library sent and received)", "Copies per byte", copies));
  line("#");
  line(fmt::format("# Collective test concluded: {}", name(s.options.collective)));
  s.json["out_of_bounds"] = Json{{"count", s.wrong}, {"okay", s.wrong == 0}};
  s.json["average_bus_bandwidth"] = Json{{"bandwidth", bus}};
  s.json["copies_per_byte"] = copies;
  if (std::isfinite(s.worst_ratio)) {
    s.json["worst_ratio"] = Json{{"ratio", s.worst_ratio}, {"row", s.worst_row}};
    line(fmt::format("worst ratio: {:.2f} ({})", s.worst_ratio, s.worst_row));
  }
  if (s.options.json_file.empty()) return "";
  std::ofstream file(s.options.json_file);
  file << s.json.dump(2) << "\n";
  file.close();
  return file ? "" : "cannot write " + s.options.json_file + ": " + std::strerror(errno);
}

}  // namespace gatun::perf
