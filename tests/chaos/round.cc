#include "tests/chaos/round.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "gatun/gatun.h"
#include "host/base/os.h"
#include "tests/chaos/rank.h"
#include "tests/system/cut.h"
#include "tests/system/gatund_process.h"

namespace gatun::chaos {
namespace {

constexpr TimeNs kStandsStill = 300 * kMs;  // a job that completes nothing for so long meets its next fault all the same
constexpr TimeNs kReturnsWithin = 2 * kSecond;
constexpr TimeNs kDestroyWithin = 2 * kSecond;
constexpr int kBatchesAfter = 3;  // the last fault

Board* board_of_this_round = nullptr;  // for the signal handler

void end_children(int) {
  for (const RankBoard& rank : board_of_this_round->ranks) {
    if (const pid_t pid = rank.pid; pid > 0) ::kill(pid, SIGKILL);
  }
  if (const pid_t pid = board_of_this_round->gatund; pid > 0) ::kill(pid, SIGKILL);
  ::_exit(2);
}

void sleep(TimeNs duration) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(duration));
}

class Round {
 public:
  Round(const Plan& plan, const std::string& ip, Board* board)
      : plan_(plan), ip_(ip), board_(*board), gatund_(ip), rendezvous_(ip + ":" + std::to_string(free_port(ip))) {
    if (!plan.switch_first) gatund_.end();
    board_.gatund = std::max(gatund_.pid(), 0);
  }

  void run() {
    for (int rank = 0; rank < plan_.ranks; ++rank) fork_rank(rank);
    if (!plan_.in_join) wait_for_join();
    for (const Step& step : plan_.steps) {
      if (plan_.in_join && &step - plan_.steps.data() == 1) wait_for_join();
      wait_for_batches(step.batches);
      if (step.on_switch) wait_until([&] { return board_.on_switch.load(); }, kReturnsWithin);
      sleep(step.delay_us * kUs);
      act(step);
    }
    if (plan_.late >= 0) {
      const RankBoard* late = &board_.ranks[static_cast<size_t>(plan_.late)];
      wait_until([&] { return all_of([&](const RankBoard& rank) { return &rank == late || rank.ended; }); }, kNever);
      signal_rank(plan_.late, SIGCONT);
    }
    wait_for_batches(kBatchesAfter);
    board_.enough = plan_.killed == 0 && plan_.apart == 0;
    wait_until([&] { return reap() == 0; }, kNever);
    judge();
    look_at_gatund();
    gatund_.end();
    std::snprintf(board_.verdict, sizeof board_.verdict, "%s", verdict_.c_str());
  }

 private:
  RankBoard& rank(int number) { return board_.ranks[static_cast<size_t>(number)]; }
  template <typename Test>
  bool all_of(Test test) const {
    return std::all_of(board_.ranks.begin(), board_.ranks.begin() + plan_.ranks, test);
  }
  bool is_killed(int number) const { return (plan_.killed >> number & 1) != 0; }
  void wrong(const std::string& what) { verdict_ += (verdict_.empty() ? "" : "; ") + what; }

  template <typename Test>
  void wait_until(Test test, TimeNs patience) {
    const TimeNs began = now_ns();
    while (!test() && now_ns() - began < patience) sleep(kMs);
  }

  // Or its end: a rank that is killed or stopped while it joins may leave the others waiting for a while.
  void wait_for_join() {
    wait_until([&] { return all_of([](const RankBoard& rank) { return rank.joined || rank.pid == 0; }) || reap() == 0; },
               plan_.in_join ? kStandsStill : kNever);
  }

  uint32_t batches() const {
    uint32_t most = 0;
    for (const RankBoard& rank : board_.ranks) most = std::max(most, rank.batches.load());
    return most;
  }

  void wait_for_batches(int count) {
    const uint32_t before = batches();
    wait_until([&] { return batches() >= before + static_cast<uint32_t>(count); }, kStandsStill);
  }

  void fork_rank(int number) {
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    GATUN_CHECK(pid >= 0);
    if (pid == 0) {
      ::signal(SIGTERM, SIG_DFL);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) live(plan_, number, {.gatund = gatund_.address(), .rendezvous = rendezvous_}, &board_);
      ::_exit(0);
    }
    rank(number).pid = pid;
  }

  void act(const Step& step) {
    switch (step.act) {
      case Act::kKillSwitch:
        look_at_gatund();
        gatund_.end();
        board_.gatund = 0;
        return;
      case Act::kTerminateSwitch:
        look_at_gatund();
        if (const std::string text = gatund_.terminate(); !text.empty()) wrong(text);
        board_.gatund = 0;
        return;
      case Act::kStartSwitch:
        gatund_.start();
        board_.gatund = gatund_.pid();
        return;
      case Act::kStopSwitch: return gatund_.signal(SIGSTOP);
      case Act::kContinueSwitch: return gatund_.signal(SIGCONT);
      case Act::kCut: return cut_off(step);
      case Act::kHeal:
        expect(heal(gatund_.pid()));
        for_each_rank([&](pid_t pid) { expect(heal(pid)); });
        return;
      case Act::kCutMesh:
        cut_mesh(step.rank, step.other, cut_between);
        if (step.both_ways) cut_mesh(step.other, step.rank, cut_between);
        return;
      case Act::kBreakMesh: return cut_mesh(step.rank, step.other, break_between);
      case Act::kKillRank: return signal_rank(step.rank, SIGKILL);
      case Act::kStopRank: return signal_rank(step.rank, SIGSTOP);
      case Act::kContinueRank: return signal_rank(step.rank, SIGCONT);
    }
  }

  void cut_off(const Step& step) {
    expect(cut(gatund_.pid(), {.towards = "", .data = step.data, .control = step.control}));
    if (!step.both_ways) return;
    for_each_rank([&](pid_t pid) { expect(cut(pid, {.towards = ip_, .data = step.data, .control = step.control})); });
  }

  void cut_mesh(int number, int other, Status (*how)(pid_t, const Ports&)) {
    const pid_t pid = rank(number).pid, other_pid = rank(other).pid;
    if (pid <= 0 || other_pid <= 0 || is_killed(number) || is_killed(other)) return;  // they may be going
    const Result<Ports> ports = connections(other_pid);
    expect(ports.ok() ? how(pid, ports.value()) : ports.status());
  }

  template <typename Do>
  void for_each_rank(Do act_on) {
    for (int number = 0; number < plan_.ranks; ++number) {
      if (const pid_t pid = rank(number).pid; pid > 0 && !is_killed(number)) act_on(pid);
    }
  }

  void signal_rank(int number, int signal) {
    if (const pid_t pid = rank(number).pid; pid > 0) ::kill(pid, signal);  // it may have ended, and been collected
  }

  void expect(const Status& status) {
    if (!status.ok()) wrong(status.message());
  }

  void look_at_gatund() {
    if (gatund_.fell()) wrong("gatund ended by itself: " + gatund_.said());
  }

  // Collects ranks that have ended; how many are left.
  int reap() {
    int left = 0;
    for (int number = 0; number < plan_.ranks; ++number) {
      RankBoard& own = rank(number);
      int status = 0;
      if (own.pid == 0) continue;
      if (::waitpid(own.pid, &status, WNOHANG) == 0) {
        ++left;
        continue;
      }
      own.pid = 0;
      const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      // Of two that are to be killed, the second may have learnt of the first in time.
      const bool in_time = well && !std::has_single_bit(plan_.killed);
      if (is_killed(number) ? !killed && !in_time : !well) {
        wrong("rank " + std::to_string(number) + " ended with status " + std::to_string(status));
      }
    }
    return left;
  }

  // A join that a fault has hit may fail, and then nobody completes anything.
  bool join_failed() const {
    return plan_.in_join && !all_of([](const RankBoard& rank) { return rank.joined && rank.create_code == 0; });
  }

  void judge() {
    uint32_t common = UINT32_MAX, most = 0;
    for (int number = 0; number < plan_.ranks; ++number) {
      if (is_killed(number)) continue;
      const RankBoard& own = rank(number);
      const std::string who = "rank " + std::to_string(number) + ": ";
      if (own.wrong[0]) wrong(who + own.wrong);
      if (const std::string text = odd_end(number); !text.empty()) wrong(who + text);
      if (own.destroy > kDestroyWithin) wrong(who + "destroyed in " + std::to_string(own.destroy / kMs) + " ms");
      common = std::min(common, own.batches.load());
      most = std::max(most, own.batches.load());
    }
    judge_digests(common, most);
  }

  // "" if the rank's operations ended as they must in this plan.
  std::string odd_end(int number) {
    const RankBoard& own = rank(number);
    const auto says = [&](int lost) {
      return std::string(own.error).find("rank " + std::to_string(lost)) != std::string::npos;
    };
    const std::string what = "code " + std::to_string(own.code) + ": " + own.error;
    if (join_failed()) return own.create_code != 0 || own.code != 0 ? "" : "another could not join, and it does not know";
    if (own.create_code != 0) return "create: " + std::string(own.error);
    if (plan_.killed != 0) {
      bool named = false;
      for (int lost = 0; lost < plan_.ranks; ++lost) named |= is_killed(lost) && says(lost);
      return own.code == GATUN_RANK_LOST && named ? "" : "no word of the killed rank, but " + what;
    }
    if (plan_.late == number) return own.code != 0 ? "" : "it was late, and does not know";
    if (plan_.late >= 0)
      return own.code == GATUN_TIMEOUT && says(plan_.late) ? "" : "no word of the stopped rank, but " + what;
    if (plan_.apart != 0) {
      bool named = false;
      for (int lost = 0; lost < plan_.ranks; ++lost) named |= (plan_.apart >> lost & 1) != 0 && says(lost);
      const int expected = plan_.faults.front() == Fault::kMeshCut ? GATUN_TIMEOUT : GATUN_RANK_LOST;
      return own.code == expected && named ? "" : "no word of the ranks that are cut off from each other, but " + what;
    }
    return own.code == 0 ? "" : what;
  }

  // Digests are chained: if those behind the last batch that all have completed agree, so do all before it.
  void judge_digests(uint32_t common, uint32_t most) {
    const size_t kept = board_.ranks[0].digests.size();
    if (common == 0 || most - common >= kept) return wrong_if(most - common >= kept, "the ranks are far apart");
    uint64_t first = 0;
    bool any = false, differ = false;
    for (int number = 0; number < plan_.ranks; ++number) {
      if (is_killed(number)) continue;
      const uint64_t digest = rank(number).digests[(common - 1) % kept];
      if (!std::exchange(any, true)) first = digest;
      differ |= digest != first;
    }
    wrong_if(differ, "the ranks hold different bits");
  }

  void wrong_if(bool condition, const char* what) {
    if (condition) wrong(what);
  }

  const Plan& plan_;
  const std::string ip_;
  Board& board_;
  GatundProcess gatund_;
  const std::string rendezvous_;
  std::string verdict_;
};

}  // namespace

void be_round(pid_t parent, const Plan& plan, const std::string& ip, Board* board) {
  board_of_this_round = board;
  ::signal(SIGTERM, end_children);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() == parent) Round(plan, ip, board).run();
  ::_exit(0);
}

}  // namespace gatun::chaos
