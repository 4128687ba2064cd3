#include "tests/sim/runner.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gatun::sim {
namespace {

constexpr size_t kFailedMax = 64;

// One per process, in memory shared with the parent.
struct Slot {
  std::atomic<uint64_t> next;  // position in the sequence of seeds that runs now
  std::atomic<uint64_t> seeds;
  std::atomic<uint64_t> failed_count;
  std::atomic<bool> finished;
  uint64_t packets, events;
  std::array<uint64_t, kMarks> hits, seeds_hit;
  std::array<uint64_t, kFailedMax> failed;
};

template <typename T>
T* share(size_t count) {
  void* at = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("gatun-sim: mmap");
    std::exit(2);
  }
  return static_cast<T*>(at);
}

Verdict judge(uint64_t seed, const Limits& limits, uint64_t twice_every) {
  const Plan plan = draw_plan(seed, limits);
  Verdict verdict = simulate(plan, nullptr);
  if (twice_every == 0 || seed % twice_every != 0 || !verdict.failure.empty()) return verdict;
  if (simulate(plan, nullptr).hash != verdict.hash)
    verdict.failure = "determinism: two runs of one seed sent different packets";
  return verdict;
}

uint64_t seed_at(const RunOptions& options, uint64_t position) {
  const uint64_t kept = options.kept_seeds.size();
  return position < kept ? options.kept_seeds[position] : options.first_seed + (position - kept);
}

void note_failure(Slot& slot, uint64_t seed) {
  const uint64_t count = slot.failed_count.load();
  if (count < kFailedMax) slot.failed[count] = seed;
  slot.failed_count.store(count + 1);
}

void work(const RunOptions& options, Slot& slot) {
  const uint64_t end = options.kept_seeds.size() + options.seeds;
  while (slot.next.load() < end && slot.failed_count.load() < options.failures_max) {
    const uint64_t seed = seed_at(options, slot.next.load());
    const Verdict verdict = judge(seed, options.limits, options.twice_every);
    slot.packets += verdict.packets;
    slot.events += verdict.events;
    for (int i = 0; i < kMarks; ++i) {
      const uint64_t count = verdict.marks.count(static_cast<Mark>(i));
      slot.hits[static_cast<size_t>(i)] += count;
      slot.seeds_hit[static_cast<size_t>(i)] += count > 0;
    }
    if (!verdict.failure.empty()) note_failure(slot, seed);
    ++slot.seeds;
    slot.next += static_cast<uint64_t>(options.jobs);
  }
  slot.finished = true;
}

pid_t start(const RunOptions& options, Slot& slot) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    std::perror("gatun-sim: fork");
    std::exit(2);
  }
  if (pid == 0) {
    work(options, slot);
    _exit(0);
  }
  return pid;
}

}  // namespace

RunTotals run_seeds(const RunOptions& options) {
  const auto jobs = static_cast<size_t>(options.jobs);
  Slot* slots = share<Slot>(jobs);
  std::vector<pid_t> pids(jobs);
  for (size_t k = 0; k < jobs; ++k) {
    slots[k].next = k;
    pids[k] = start(options, slots[k]);
  }
  size_t running = jobs;
  while (running > 0) {
    for (size_t k = 0; k < jobs; ++k) {
      if (pids[k] == 0 || waitpid(pids[k], nullptr, WNOHANG) != pids[k]) continue;
      if (slots[k].finished) {
        pids[k] = 0;
        --running;
        continue;
      }
      note_failure(slots[k], seed_at(options, slots[k].next));
      ++slots[k].seeds;
      slots[k].next += jobs;
      pids[k] = start(options, slots[k]);
    }
    if (running == 0) break;
    usleep(20000);
    if (!options.progress) continue;
    uint64_t seeds = 0;
    for (size_t k = 0; k < jobs; ++k) seeds += slots[k].seeds;
    std::fprintf(stderr, "\r%llu of %llu seeds", static_cast<unsigned long long>(seeds),
                 static_cast<unsigned long long>(options.seeds + options.kept_seeds.size()));
  }
  if (options.progress) std::fprintf(stderr, "\r                                        \r");

  RunTotals totals;
  for (size_t k = 0; k < jobs; ++k) {
    totals.seeds += slots[k].seeds;
    totals.packets += slots[k].packets;
    totals.events += slots[k].events;
    for (size_t i = 0; i < kMarks; ++i) {
      totals.hits[i] += slots[k].hits[i];
      totals.seeds_hit[i] += slots[k].seeds_hit[i];
    }
    const size_t failed = std::min<uint64_t>(slots[k].failed_count, kFailedMax);
    totals.failed.insert(totals.failed.end(), slots[k].failed.begin(),
                         slots[k].failed.begin() + static_cast<ptrdiff_t>(failed));
  }
  std::sort(totals.failed.begin(), totals.failed.end());
  munmap(slots, jobs * sizeof(Slot));
  return totals;
}

std::string failure_of(uint64_t seed, const Limits& limits, uint64_t twice_every) {
  constexpr size_t kTextMax = 4096;
  char* text = share<char>(kTextMax);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const Verdict verdict = judge(seed, limits, twice_every);
    std::snprintf(text, kTextMax, "%s", verdict.failure.c_str());
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::string failure = text;
  munmap(text, kTextMax);
  if (WIFSIGNALED(status)) failure = "crash: signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) failure = "crash: exit code " + std::to_string(WEXITSTATUS(status));
  return failure;
}

Limits shrink(uint64_t seed, const Limits& limits) {
  Limits best = limits;
  const auto try_it = [&](Limits candidate) {
    const bool fails = !failure_of(seed, candidate, 1).empty();
    if (fails) best = candidate;
    return fails;
  };
  const auto least = [&](uint32_t Limits::*field) {
    for (uint32_t value = 1; value < best.*field; value += 1 + value / 4) {
      Limits candidate = best;
      candidate.*field = value;
      if (try_it(candidate)) return;
    }
  };
  for (int pass = 0; pass < 2; ++pass) {
    least(&Limits::lines);
    least(&Limits::epochs);
    least(&Limits::ops);
    least(&Limits::ranks);
    least(&Limits::levels);
    least(&Limits::trees);
    for (int fault = 0; fault < kFaults; ++fault) {
      Limits candidate = best;
      candidate.without |= 1u << fault;
      if (candidate.without != best.without) try_it(candidate);
    }
  }
  return best;
}

void explain(uint64_t seed, const Limits& limits) {
  std::printf("%s", describe(draw_plan(seed, limits)).c_str());
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    Trace trace;
    const Verdict verdict = simulate(draw_plan(seed, limits), &trace);
    std::printf("last events:\n");
    for (const std::string& line : trace.lines) std::printf("%s\n", line.c_str());
    std::printf("%s\n", verdict.failure.empty() ? "no failure" : verdict.failure.c_str());
    std::fflush(nullptr);
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
}

}  // namespace gatun::sim
