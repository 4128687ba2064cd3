#include <catch2/catch.hpp>
#include <cstdio>
#include <set>
#include <sstream>

#include "switch_model/daemon/metrics.h"

using namespace gatun;

namespace {

Snapshot one_job() {
  Snapshot snapshot;
  snapshot.lanes.resize(2);
  snapshot.lanes[1].node.dropped_checksum = 5;
  snapshot.lanes[1].busy_ns = 1500 * kMs;
  Snapshot::Job& job = snapshot.jobs.emplace_back();
  job.name = "a \"b\"\\\n";
  job.state = Snapshot::kStalled;
  job.ranks = 3;
  job.stats.reduced_chunks = 4;
  job.stats.reduced_bytes = uint64_t{1} << 53;
  job.stats.reduce_ns = 2 * kUs;
  job.waited = 2 * kSecond;
  job.missing = {2};
  return snapshot;
}

bool has(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != text.npos;
}

// True, with a word, in a build without metrics.
bool skipped() {
  if (!why_no_metrics()) return false;
  std::printf("[skipped] metrics_text: %s\n", why_no_metrics());
  CHECK(metrics_text(one_job()).empty());
  return true;
}

}  // namespace

TEST_CASE("metrics_text__values_and_labels", "[metrics]") {
  if (skipped()) return;
  const std::string text = metrics_text(one_job());
  const std::string job = "{job=\"a \\\"b\\\"\\\\\\n\"";
  CHECK(has(text, "gatun_jobs{state=\"stalled\"} 1"));
  CHECK(has(text, "gatun_jobs{state=\"running\"} 0"));
  CHECK(has(text, "gatun_drops_total{lane=\"1\",reason=\"checksum\"} 5"));
  CHECK(has(text, "gatun_lane_busy_seconds_total{lane=\"1\"} 1.5"));
  CHECK(has(text, "gatun_job_ranks" + job + "} 3"));
  CHECK(has(text, "gatun_job_stalled" + job + "} 1"));
  CHECK(has(text, "gatun_job_missing_seconds" + job + ",rank=\"2\"} 2"));
  CHECK(has(text, "gatun_job_reduced_bytes_total" + job + "} 9007199254740992"));
  CHECK(has(text, "gatun_job_reduce_seconds_count" + job + "} 4"));
  CHECK(text.find("rank=\"1\"") == text.npos);
}

TEST_CASE("metrics_text__no_jobs_no_series_of_jobs", "[metrics]") {
  if (skipped()) return;
  const std::string text = metrics_text({});
  CHECK(text.find("job=\"") == text.npos);
  CHECK(has(text, "gatun_jobs{state=\"stalled\"} 0"));
}

TEST_CASE("metrics_text__ranks_that_are_hardly_late_are_not_named", "[metrics]") {
  if (skipped()) return;
  Snapshot snapshot = one_job();
  snapshot.jobs[0].waited = 99 * kMs;
  CHECK(metrics_text(snapshot).find("rank=\"") == std::string::npos);
}

TEST_CASE("metrics_text__every_series_once_and_every_family_with_its_type", "[metrics]") {
  if (skipped()) return;
  std::istringstream lines(metrics_text(one_job()));
  std::set<std::string> series, types;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      CHECK(types.insert(line.substr(7, line.find(' ', 7) - 7)).second);
    } else if (line[0] != '#') {
      INFO(line);
      CHECK(series.insert(line.substr(0, line.rfind(' '))).second);
      std::string name = line.substr(0, line.find_first_of("{ "));
      if (name == "gatun_job_reduce_seconds_sum" || name == "gatun_job_reduce_seconds_count") {
        name = name.substr(0, name.rfind('_'));
      }
      CHECK(types.count(name) == 1);
    }
  }
  CHECK(series.size() > 50);
}
