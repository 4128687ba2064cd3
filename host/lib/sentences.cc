#include "host/lib/sentences.h"

#include <bit>

#include "host/base/settings.h"

namespace gatun {
namespace {

constexpr int kRanksNamed = 8;

std::string operation_name(const Request& request) {
  std::string text = describe(request.contract);
  if (request.submitted) text += " (operation " + std::to_string(request.ordinal) + ")";
  return text;
}

// Rounded to what a reader wants to know.
std::string span_of(TimeNs duration) {
  const TimeNs unit = duration >= kSecond ? 100 * kMs : kMs;
  return format_duration(duration < kMs ? duration : (duration + unit / 2) / unit * unit);
}

std::string cause(const Request& request, const Datapath::Stall& stall, const std::string& switch_name, TimeNs now) {
  if (!request.submitted) return "it is queued behind earlier operations";
  const std::string at = "(switch " + switch_name + ")";
  const std::string chunk = "chunk " + std::to_string(stall.index) + " of tree " + std::to_string(stall.tree);
  if (stall.missing) {
    const bool one = std::has_single_bit(stall.missing);
    return rank_list(stall.missing) + (one ? " has" : " have") + " not contributed to " + chunk + " " + at;
  }
  if (!stall.found) return "no chunk of it is in flight " + at;
  if (stall.heard_at == 0) return "the switch has never answered on tree " + std::to_string(stall.tree) + " " + at;
  return chunk + " has no answer; the switch was last heard " + span_of(now - stall.heard_at) + " ago " + at;
}

}  // namespace

std::string rank_list(uint64_t ranks) {
  const int count = std::popcount(ranks);
  std::string text;
  int named = 0;
  for (int rank = 0; rank < 64; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    if (named == kRanksNamed) return std::to_string(count) + " ranks (" + text + ", ...)";
    if (named > 0) text += count <= kRanksNamed && named == count - 1 ? " and " : ", ";
    text += std::to_string(rank);
    ++named;
  }
  return (count == 1 ? "rank " : "ranks ") + text;
}

std::string timeout_sentence(const Request& request, const Datapath::Stall& stall, const std::string& switch_name,
                             const std::string& known, TimeNs now) {
  std::string text = operation_name(request) + " timed out after " + format_duration(request.timeout) + ": " +
                     cause(request, stall, switch_name, now);
  if (!known.empty()) text += "; " + known;
  return text;
}

std::string stall_sentence(const Request& request, const Datapath::Stall& stall, const std::string& switch_name,
                           TimeNs now) {
  return operation_name(request) + " has waited for " + span_of(now - request.started_at) + ": " +
         cause(request, stall, switch_name, now);
}

namespace {

std::string ring_cause(const Request& request, const std::string& awaited) {
  if (!request.submitted) return "it is queued behind earlier operations" + (awaited.empty() ? "" : "; " + awaited);
  return awaited.empty() ? "it runs without the switch, and has not come to its end" : awaited;
}

}  // namespace

std::string ring_timeout_sentence(const Request& request, const std::string& awaited) {
  return operation_name(request) + " timed out after " + format_duration(request.timeout) + ": " +
         ring_cause(request, awaited);
}

std::string ring_stall_sentence(const Request& request, const std::string& awaited, TimeNs now) {
  return operation_name(request) + " has waited for " + span_of(now - request.started_at) + ": " +
         ring_cause(request, awaited);
}

std::string ring_asked_sentence(const Request* request, const std::string& by) {
  const std::string over = "the time of an operation is over at " + by;
  return request ? operation_name(*request) + " cannot end: " + over : over;
}

std::string refused_sentence(const Request& request) {
  return "ranks disagree on operation " + std::to_string(request.ordinal) + "; this rank called " +
         describe(request.contract) + ", and the controller did not say in time what the others called";
}

}  // namespace gatun
