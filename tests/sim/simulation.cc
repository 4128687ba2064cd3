#include "tests/sim/simulation.h"

#include <algorithm>

namespace gatun::sim {
namespace {

constexpr uint64_t kEventsMax = 5'000'000;
constexpr TimeNs kProbeEvery = 1 * kMs;

// What giving up switches and going back to them may add to the time that a job needs.
TimeNs failover_time(const Plan& plan, const JobPlan& job, TimeNs without) {
  const FailoverPlan& failover = plan.failover;
  const TimeNs epochs = 2 + failover.returns;
  const TimeNs change =
      3 * failover.detect + failover.return_after_max + failover.down_max + 20 * kMs + 10 * failover.mesh_max;
  const TimeNs on_ring = static_cast<TimeNs>(job.calls.size()) * (4 * failover.mesh_max + job.think_max);
  return epochs * (without + change) + on_ring;
}

}  // namespace

Simulation::Simulation(const Plan& plan, Trace* trace) : plan_(plan), world_(plan, trace), network_(world_) {
  for (uint32_t id = 0; id < kSwitches; ++id) switches_.push_back(std::make_unique<Switch>(world_, network_, id));
  for (uint32_t i = 0; i < plan.failover.crashes; ++i) {
    Stream random(plan.seed, Draw::kCrash, kSwitches, i);
    const uint64_t id = random.below(kSwitches);
    if (plan.failover.on) switches_[id]->crash_after(random.log_between(1, plan.failover.crash_after_max));
  }
  lines_.resize(plan.lines.size());
  for (uint32_t line = 0; line < lines_.size(); ++line) at(0, {.act = Act::kAdmit, .line = line});
}

void Simulation::at(TimeNs time, const Entry& entry) {
  entries_.push_back(entry);
  world_.queue.push(time, EventKind::kTimeline, static_cast<uint32_t>(entries_.size() - 1));
}

// Faults may last until the paths heal; then what is left must pass within a time that the plan gives.
TimeNs Simulation::deadline() const {
  const TimeNs hop = plan_.delay_max * 5 / 4 + plan_.switch_burst + plan_.timer_slack;
  TimeNs total = plan_.heals_at + plan_.spike_max;
  for (const auto& line : plan_.lines) {
    TimeNs sum = 0;
    for (const JobPlan& job : line) {
      TimeNs chunks = 0, refusals = 0;
      for (const CallPlan& call : job.calls) {
        chunks += static_cast<TimeNs>(std::max(Shape(job, call.op).chunks(), Shape(job, call.odd).chunks()));
        refusals += !call.same();
      }
      const TimeNs round_trip = 2 * static_cast<TimeNs>(job.levels) * hop;
      sum += job.skew_max + static_cast<TimeNs>(job.calls.size()) * job.think_max + 10 * kProbeEvery + 8 * round_trip;
      sum += (10 + 4 * refusals) * (job.rto_max + round_trip) + 4 * chunks * round_trip;
    }
    if (plan_.failover.on) sum = failover_time(plan_, line[0], sum);
    total = std::max(total, plan_.heals_at + plan_.spike_max + sum);
  }
  return total;
}

Verdict Simulation::run() {
  const TimeNs end = deadline();
  uint64_t events = 0;
  while (!world_.queue.empty() && !world_.failed()) {
    const Events::Event event = world_.queue.pop();
    world_.now = event.time;
    if (++events > kEventsMax)
      world_.fail("storm", "more than %llu events; %s", static_cast<unsigned long long>(events), progress().c_str());
    if (world_.now > end) {
      const bool all_done = std::all_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.finished; });
      if (!all_done)
        world_.fail("liveness", "not done %lld us after the paths healed; %s",
                    static_cast<long long>((end - plan_.heals_at) / kUs), progress().c_str());
    }
    switch (event.kind) {
      case EventKind::kDeliver: deliver(event.index); break;
      case EventKind::kHost: on_host(event.index); break;
      case EventKind::kSwitch: on_switch(event.index); break;
      case EventKind::kFailover: {
        Line& line = lines_[event.index >> 28];
        line.failover->on_event(event.index & 0xfffffff);
        line.finished |= line.failover->finished();
        break;
      }
      case EventKind::kTimeline: on_timeline(entries_[event.index]); break;
    }
  }
  if (!world_.failed()) check_end();
  return {.failure = world_.failure,
          .hash = world_.hash,
          .packets = network_.sent(),
          .events = events,
          .time = world_.now,
          .marks = world_.marks};
}

void Simulation::deliver(uint32_t index) {
  const uint32_t to = network_.packet(index).to;
  if (to < kSwitches) return switches_[to]->on_delivery(index);
  const uint32_t line = (to - kSwitches) / kRanksMax, rank = (to - kSwitches) % kRanksMax;
  if (line < lines_.size() && lines_[line].failover) return lines_[line].failover->on_delivery(index, rank);
  JobRun* job = line < lines_.size() ? lines_[line].job.get() : nullptr;
  Host* host = job && job->alive() ? job->host(rank) : nullptr;
  if (!host) return network_.free(index);
  host->on_delivery(index);
}

void Simulation::on_host(uint32_t endpoint) {
  const uint32_t line = (endpoint - kSwitches) / kRanksMax, rank = (endpoint - kSwitches) % kRanksMax;
  if (Failover* failover = lines_[line].failover.get()) {
    failover->on_host(rank);
    lines_[line].finished |= failover->finished();
    return;
  }
  JobRun* job = lines_[line].job.get();
  Host* host = job && job->alive() ? job->host(rank) : nullptr;
  if (!host) return;
  host->on_run();
  after_host_ran(line);
}

void Simulation::on_switch(uint32_t id) {
  switches_[id]->on_run();
  if (!switches_[id]->crash_due()) return;
  world_.marks.hit(Mark::kSwitchCrash);
  if (world_.trace) world_.log("switch %u crashes", id);
  Stream random(plan_.seed, Draw::kCrash, id, ++crashes_);
  switches_[id]->crash(world_.now +
                       static_cast<TimeNs>(random.log_between(1, static_cast<uint64_t>(plan_.failover.down_max))));
  if (!world_.healed() && crashes_ < plan_.failover.crashes)
    switches_[id]->crash_after(random.log_between(1, plan_.failover.crash_after_max));
  for (Line& line : lines_) {
    if (line.failover) line.failover->on_crash(id);
  }
  // Sometimes all of them at once, as when they are one daemon.
  if (world_.healed() || crashes_ > plan_.failover.crashes || !random.one_in(4)) return;
  for (const auto& other : switches_) {
    if (other->up()) other->crash_at(world_.now);
  }
}

void Simulation::after_host_ran(uint32_t index) {
  Line& line = lines_[index];
  if (world_.failed() || line.finished) return;
  if (!line.exam_due && line.job->waits_for_exam()) {
    line.exam_due = true;
    const TimeNs calm = plan_.heals_at + plan_.spike_max + 64 * plan_.delay_max;
    at(std::max(world_.now, calm), {.act = Act::kExam, .line = index, .epoch = line.epoch});
  }
  if (!line.job->done()) return;
  line.finished = true;
  line.job->check_end();
  at(world_.now, {.act = Act::kNext, .line = index, .epoch = line.epoch});
}

void Simulation::on_timeline(const Entry& entry) {
  Line& line = lines_[entry.line];
  if (entry.act != Act::kRemove && entry.epoch != line.epoch) return;
  switch (entry.act) {
    case Act::kAdmit:
      if (plan_.failover.on) {
        line.failover = std::make_unique<Failover>(world_, network_, switches_, plan_.lines[entry.line][0]);
        return line.failover->begin();
      }
      if (line.job) {
        line.job->kill();
        buried_.push_back(std::move(line.job));
      }
      line.finished = line.exam_due = false;
      line.job = std::make_unique<JobRun>(world_, network_, switches_, plan_.lines[entry.line][line.epoch]);
      if (world_.trace) world_.log("job %u.%u is admitted", entry.line, line.epoch);
      line.job->admit();
      at(world_.now, {.act = Act::kProbe, .line = entry.line, .epoch = line.epoch});
      return;
    case Act::kProbe:
      if (!line.job->alive() || line.job->started()) return;
      if (line.job->probe()) return at(world_.now + kProbeEvery, entry);
      line.job->start();
      return start_killed_timer(entry.line);
    case Act::kExam: return line.job->begin_exam();
    case Act::kKill: return kill(entry.line);
    case Act::kRemove: return line.job->remove_tree(entry.tree, entry.node);
    case Act::kNext:
      // An orderly end has removed nothing yet; after a kill the switches have been told one by one.
      line.job->remove_all();
      if (line.epoch + 1 >= plan_.lines[entry.line].size()) return;
      ++line.epoch;
      return at(world_.now, {.act = Act::kAdmit, .line = entry.line, .epoch = line.epoch});
  }
}

void Simulation::start_killed_timer(uint32_t line) {
  const JobPlan& job = lines_[line].job->plan();
  if (job.killed_after == kNever) return;
  at(world_.now + job.killed_after, {.act = Act::kKill, .line = line, .epoch = job.epoch});
}

void Simulation::kill(uint32_t index) {
  Line& line = lines_[index];
  if (line.finished) return;
  world_.marks.hit(Mark::kKilled);
  if (world_.trace) world_.log("job %u.%u is killed", index, line.epoch);
  line.job->kill();
  const JobPlan& job = line.job->plan();
  Stream random(plan_.seed, Draw::kSwitch, index, line.epoch);
  TimeNs last = world_.now;
  for (uint32_t t = 0; t < job.trees; ++t) {
    for (uint32_t node = 0; node < job.tree_plans[t].switches.size(); ++node) {
      const TimeNs when = world_.now + static_cast<TimeNs>(random.below(static_cast<uint64_t>(200 * kUs)));
      last = std::max(last, when);
      at(when, {.act = Act::kRemove, .line = index, .epoch = line.epoch, .tree = t, .node = node});
    }
  }
  line.finished = true;
  at(last, {.act = Act::kNext, .line = index, .epoch = line.epoch});
}

void Simulation::check_end() {
  for (const Line& line : lines_) {
    if (!line.finished) world_.fail("liveness", "nothing is left to happen; %s", progress().c_str());
  }
  for (const auto& node : switches_) {
    if (node->trees() != 0 || node->held() != 0) world_.fail("buffers", "a switch holds %u buffers of no job", node->held());
  }
  if (network_.in_use() != 0) world_.fail("buffers", "%u packets were never given back", network_.in_use());
}

std::string Simulation::progress() const {
  std::string text;
  for (const Line& line : lines_) {
    if (line.failover && !line.finished) text += line.failover->progress();
    if (line.finished || !line.job) continue;
    text += "job " + std::to_string(line.job->plan().line) + "." + std::to_string(line.epoch);
    if (!line.job->started()) text += " has not proven its paths";
    text += ":";
    for (uint32_t rank = 0; Host* host = line.job->host(rank); ++rank) text += "\n  " + host->progress();
    text += "\n";
  }
  return text;
}

Verdict simulate(const Plan& plan, Trace* trace) {
  return Simulation(plan, trace).run();
}

}  // namespace gatun::sim
