#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "switch_model/daemon/health.h"

using namespace gatun;
using nlohmann::json;

namespace {

Snapshot two_jobs() {
  Snapshot snapshot;
  snapshot.jobs.resize(2);
  snapshot.jobs[0].name = "train \"x\"";
  snapshot.jobs[0].state = Snapshot::kRunning;
  snapshot.jobs[0].ranks = snapshot.jobs[0].joined = 4;
  snapshot.jobs[0].waited = 3 * kSecond;
  snapshot.jobs[0].missing = {1, 3};
  snapshot.jobs[0].operation = 12;
  snapshot.jobs[1].name = "other";
  snapshot.jobs[1].ranks = 2;
  snapshot.jobs[1].joined = 1;
  return snapshot;
}

}  // namespace

TEST_CASE("health__ok", "[health]") {
  const HttpAnswer answer = health(two_jobs(), "");
  CHECK(answer.code == 200);
  CHECK(answer.type == "application/json");
  const json body = json::parse(answer.body);
  CHECK(body["status"] == "ok");
  REQUIRE(body["jobs"].size() == 2);
  CHECK(body["jobs"][0]["job"] == "train \"x\"");
  CHECK(body["jobs"][0]["state"] == "running");
  CHECK(body["jobs"][0]["stalled_ranks"].empty());
  CHECK(body["jobs"][0]["stalled_for_ms"] == 0);
  CHECK_FALSE(body["jobs"][0].contains("operation"));
  CHECK(body["jobs"][1]["state"] == "joining");
  CHECK(body["jobs"][1]["joined"] == 1);
  CHECK(json::parse(health({}, "").body)["jobs"].is_array());
}

TEST_CASE("health__a_stalled_job_names_its_ranks_and_the_daemon_lives", "[health]") {
  Snapshot snapshot = two_jobs();
  snapshot.jobs[0].state = Snapshot::kStalled;
  const HttpAnswer answer = health(snapshot, "");
  CHECK(answer.code == 200);
  const json body = json::parse(answer.body);
  CHECK(body["status"] == "stalled");
  CHECK(body["jobs"][0]["state"] == "stalled");
  CHECK(body["jobs"][0]["stalled_ranks"] == json({1, 3}));
  CHECK(body["jobs"][0]["stalled_for_ms"] == 3000);
  CHECK(body["jobs"][0]["operation"] == 12);
}

TEST_CASE("health__one_job", "[health]") {
  Snapshot snapshot = two_jobs();
  CHECK(health(snapshot, "job=other").code == 200);
  CHECK(json::parse(health(snapshot, "job=other").body)["ranks"] == 2);
  CHECK(health(snapshot, "job=train+%22x%22").code == 200);
  CHECK(health(snapshot, "job=train%20%22x%22").code == 200);
  snapshot.jobs[0].state = Snapshot::kStalled;
  CHECK(health(snapshot, "job=train+%22x%22").code == 503);
  CHECK(health(snapshot, "job=other").code == 200);
  for (const char* none : {"job=", "job=nobody", "job=%ff", "job=%", "job=%2", "job=%zz", "job=other%00"}) {
    CHECK(health(snapshot, none).code == 404);
    CHECK(json::parse(health(snapshot, none).body).contains("error"));
  }
  CHECK(health(snapshot, "jobs=other").code == 400);
}

TEST_CASE("health__stopping_and_unresponsive", "[health]") {
  Snapshot snapshot = two_jobs();
  snapshot.stopping = true;
  CHECK(health(snapshot, "").code == 200);
  CHECK(json::parse(health(snapshot, "").body)["status"] == "stopping");
  snapshot.silent = "lane 1";
  CHECK(health(snapshot, "").code == 503);
  CHECK(json::parse(health(snapshot, "").body)["status"] == "unresponsive");
  CHECK(json::parse(health(snapshot, "").body)["silent"] == "lane 1");
}
