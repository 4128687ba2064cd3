// gatun-sim-mutants: plants one fault after the other in the core and runs seeds until a checker finds it.
//
// A fault that no seed within the bound finds fails the test: then the simulator is blind to it. The core without a fault
// must pass the same seeds first. The table says which seed found what.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "protocols/mutation.h"
#include "tests/sim/simulation.h"

namespace gatun {
Mutation planted_mutation = Mutation::kNone;
}

namespace gatun::sim {
namespace {

constexpr uint64_t kSeedsHealthy = 300;
constexpr uint64_t kSeedsMax = 6000;
constexpr rlim_t kCpuSecondsMax = 60;  // a planted fault may loop for ever

struct Row {
  Mutation mutation;
  const char* text;
};
constexpr Row kRows[] = {
    {Mutation::kOneBank, "one bank: W slots instead of 2W"},
    {Mutation::kNoChunkNumber, "no chunk number in the bank (SwitchML's rule)"},
    {Mutation::kRepeatCounts, "a child that repeats itself counts again"},
    {Mutation::kNoRepeatUp, "an inner switch does not repeat upwards"},
    {Mutation::kNoRepeatDown, "an answered chunk is not answered again"},
    {Mutation::kMarkNotOred, "marks of contributions get lost"},
    {Mutation::kEmptyHasPayload, "an empty contribution is added"},
    {Mutation::kPlainLess, "chunk numbers compared as plain numbers"},
    {Mutation::kOpPlainLess, "operation numbers compared as plain numbers"},
    {Mutation::kContractIgnored, "different operations are added"},
    {Mutation::kChildRefusalIgnored, "a refusal from below counts as a contribution"},
    {Mutation::kVoidIgnored, "chunks behind a refused one are not void"},
    {Mutation::kVoidForever, "a void refusal voids what is still to come"},
    {Mutation::kPayloadOfOthers, "an answer without what only others gave"},
    {Mutation::kOldHandle, "late packets of an old epoch accepted"},
    {Mutation::kAnyPeer, "contributions accepted from anybody"},
    {Mutation::kAnyParent, "answers accepted from anybody"},
    {Mutation::kAnyToken, "probes accepted without the token"},
    {Mutation::kSharedPlace, "two neighbours share a place in the arena"},
    {Mutation::kReleasedEarly, "a buffer goes back before it is added"},
    {Mutation::kNotReleased, "a refused chunk keeps its buffers"},
    {Mutation::kRemoveKeeps, "a removed tree keeps its buffers"},
    {Mutation::kOrderOfBuffers, "added in the order of buffers, not of children"},
    {Mutation::kDivisorOfChildren, "average over the root's children"},
    {Mutation::kStampOfRepeat, "a repeated answer has its own time"},
    {Mutation::kStatusNamesArrived, "STATUS names those who are here"},
    {Mutation::kNoChecksum, "checksum not verified"},
    {Mutation::kBeyondWindow, "W + 1 chunks in the window"},
    {Mutation::kWindowCounts, "window opens with any answer, not the oldest"},
    {Mutation::kAcceptTwice, "an answer already held is news"},
    {Mutation::kAcceptEarly, "answer accepted before its operation's first"},
    {Mutation::kRefusalEarly, "refusal accepted before earlier operations"},
    {Mutation::kVoidNotSkipped, "stream goes on right behind a refused chunk"},
    {Mutation::kNoRestart, "full window right behind the void chunks"},
    {Mutation::kNoTombstone, "a failed operation is still sent from"},
    {Mutation::kStatusAnswers, "STATUS taken for an answer"},
    {Mutation::kNoTimer, "the retransmission timer never fires"},
    {Mutation::kNoWrap, "wire numbers not extended to 64 bits"},
    {Mutation::kTimeoutNeverDown, "the timeout only grows"},
    {Mutation::kWindowZero, "the congestion window falls below one"},
    {Mutation::kNotFrozen, "answers accepted after the holdings were said"},
    {Mutation::kRetainHalf, "only W/2 answers are retained"},
    {Mutation::kHoldingsOfFirst, "the plan counts only what rank 0 holds"},
    {Mutation::kRefusalForgotten, "a refusal that others have not heard of is not said"},
    {Mutation::kAnewThoughHeld, "a chunk that somebody holds is reduced anew"},
    {Mutation::kAheadForgotten, "what is held behind a gap is not said"},
    {Mutation::kGapEndsPlan, "the plan ends at the last operation without a gap"},
    {Mutation::kPlanOfMajority, "the plan is made before all have spoken"},
    {Mutation::kEarlyDropped, "messages of the epoch to come are dropped"},
    {Mutation::kReadyAlone, "a rank that is ready goes over alone"},
    {Mutation::kReadyNotCompared, "ranks ready for different jobs go over"},
    {Mutation::kGoOverLate, "rank 0 goes over one operation later"},
    {Mutation::kRoundOfMajority, "a ring operation runs before all are there"},
    {Mutation::kContractsOnRing, "contracts not compared on the ring"},
};
static_assert(sizeof kRows / sizeof kRows[0] == static_cast<size_t>(Mutation::kCount) - 1);

struct Shared {
  uint64_t seed;  // running, or caught
  bool caught;
  char failure[400];
};

void hunt(Mutation mutation, uint64_t seeds, Shared* shared) {
  planted_mutation = mutation;
  for (shared->seed = 1; shared->seed <= seeds; ++shared->seed) {
    const Verdict verdict = simulate(draw_plan(shared->seed, {}), nullptr);
    if (verdict.failure.empty()) continue;
    std::snprintf(shared->failure, sizeof shared->failure, "%s", verdict.failure.c_str());
    shared->caught = true;
    return;
  }
}

// In a process of its own, because a fault may make the core abort or never come back.
std::string hunt_apart(Mutation mutation, uint64_t seeds, Shared* shared) {
  *shared = {};
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit{.rlim_cur = kCpuSecondsMax, .rlim_max = kCpuSecondsMax};
    setrlimit(RLIMIT_CPU, &limit);
    if (!freopen("/dev/null", "w", stderr)) _exit(3);
    hunt(mutation, seeds, shared);
    _exit(0);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) {
    std::perror("gatun-sim-mutants");
    std::exit(2);
  }
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGXCPU ? "never ends" : "crash: signal " + std::to_string(WTERMSIG(status));
  if (!shared->caught) return "";
  const std::string failure = shared->failure;
  return failure.substr(0, failure.find(':'));
}

int run(const std::string& only) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("gatun-sim-mutants: mmap");
    return 2;
  }
  auto* shared = static_cast<Shared*>(memory);
  const std::string healthy = hunt_apart(Mutation::kNone, kSeedsHealthy, shared);
  if (!healthy.empty()) {
    std::printf("seed %llu fails without a planted fault: %s\n", static_cast<unsigned long long>(shared->seed),
                shared->failure);
    return 1;
  }
  std::printf("%-48s %8s  %s\n", "planted fault", "seed", "found by checker");
  int missed = 0, planted = 0;
  for (const Row& row : kRows) {
    if (!only.empty() && std::string(row.text).find(only) == std::string::npos) continue;
    ++planted;
    const std::string checker = hunt_apart(row.mutation, kSeedsMax, shared);
    if (checker.empty()) {
      ++missed;
      std::printf("%-48s %8s  NOT FOUND in %llu seeds\n", row.text, "-", static_cast<unsigned long long>(kSeedsMax));
    } else {
      std::printf("%-48s %8llu  %s\n", row.text, static_cast<unsigned long long>(shared->seed), checker.c_str());
    }
  }
  std::printf("faults: %d not found: %d\n", planted, missed);
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gatun::sim

// An argument picks the faults whose text contains it.
int main(int argc, char** argv) {
  return gatun::sim::run(argc > 1 ? argv[1] : "");
}
