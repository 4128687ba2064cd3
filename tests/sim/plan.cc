#include "tests/sim/plan.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "tests/sim/rng.h"
#include "tests/sim/shape.h"

namespace gatun::sim {
namespace {

// Rates per million packets (for cut, pause, slow switch and kill: only zero or not). Log-uniform between the two.
struct FaultRow {
  Fault fault;
  const char* name;
  uint32_t low_ppm, high_ppm;
};
constexpr FaultRow kFaultRows[kFaults] = {
    {Fault::kLoss, "loss", 300, 200000},
    {Fault::kDuplicate, "duplicate", 300, 200000},
    {Fault::kReorder, "reorder", 1000, 300000},
    {Fault::kSpike, "spike", 100, 20000},
    {Fault::kCorrupt, "corrupt", 300, 80000},
    {Fault::kTruncate, "truncate", 300, 40000},
    {Fault::kReplay, "replay", 500, 80000},
    {Fault::kForge, "forge", 500, 80000},
    {Fault::kCut, "cut", 1, 1},
    {Fault::kPause, "pause", 1, 1},
    {Fault::kSlowSwitch, "slow_switch", 1, 1},
    {Fault::kMark, "mark", 1000, 500000},
    {Fault::kMismatch, "mismatch", 20000, 400000},
    {Fault::kKill, "kill", 1, 1},
    {Fault::kCrash, "crash", 1, 1},
    {Fault::kSuspect, "suspect", 1, 1},
    {Fault::kReturn, "return", 1, 1},
    {Fault::kDeath, "death", 1, 1},
};

constexpr uint32_t kOperationsAll = 256;  // in flight: all that a rank calls, and as many as a Worker takes

TreePlan draw_tree(const JobPlan& job, uint32_t levels, Stream random) {
  TreePlan tree;
  std::array<uint32_t, kSwitches> ids;
  std::iota(ids.begin(), ids.end(), 0u);
  for (uint32_t i = kSwitches - 1; i > 0; --i) std::swap(ids[i], ids[random.below(i + 1)]);

  std::vector<SwitchPlan::Child> level(job.ranks);
  for (uint32_t rank = 0; rank < job.ranks; ++rank) level[rank].index = rank;
  for (uint32_t i = job.ranks - 1; i > 0; --i) std::swap(level[i], level[random.below(i + 1)]);
  const uint32_t groups_max[] = {4, 2};
  for (uint32_t depth = 0; depth < levels; ++depth) {
    const bool top = depth + 1 == levels;
    const uint32_t limit = std::min<uint32_t>(groups_max[std::min(depth, 1u)], static_cast<uint32_t>(level.size()));
    const uint32_t groups = top ? 1 : static_cast<uint32_t>(random.between(1, limit));
    std::vector<std::vector<SwitchPlan::Child>> members(groups);
    std::vector<SwitchPlan::Child> next;
    for (const SwitchPlan::Child& child : level) {
      const bool waits = !top && random.one_in(5);  // joins a level further up
      (waits ? next : members[random.below(groups)]).push_back(child);
    }
    for (std::vector<SwitchPlan::Child>& group : members) {
      if (group.empty()) continue;
      const auto index = static_cast<uint32_t>(tree.switches.size());
      tree.switches.push_back({.id = ids[index], .children = std::move(group)});
      next.insert(next.begin() + static_cast<ptrdiff_t>(random.below(next.size() + 1)), {.is_switch = true, .index = index});
    }
    level = std::move(next);
  }

  tree.leaf_of_rank.resize(job.ranks);
  for (uint32_t i = 0; i < tree.switches.size(); ++i) {
    SwitchPlan& node = tree.switches[i];
    for (uint32_t k = 0; k < node.children.size(); ++k) {
      const SwitchPlan::Child& child = node.children[k];
      if (child.is_switch) {
        SwitchPlan& below = tree.switches[child.index];
        below.parent = static_cast<int>(i);
        below.child_at_parent = k;
        std::vector<uint16_t> ranks;
        for (const auto& some : below.child_ranks) ranks.insert(ranks.end(), some.begin(), some.end());
        node.child_ranks.push_back(std::move(ranks));
      } else {
        tree.leaf_of_rank[child.index] = {.index = i, .child = k};
        node.child_ranks.push_back({static_cast<uint16_t>(child.index)});
      }
    }
  }
  return tree;
}

Type draw_type(Stream& random) {
  return random.below(5) < 2 ? Type::kF32 : static_cast<Type>(random.below(kTypes));
}

OpPlan draw_op(const JobPlan& job, uint64_t chunks, Stream random) {
  OpPlan op;
  op.key = random.next();
  op.type = draw_type(random);
  op.op = random.one_in(2) ? Op::kSum : static_cast<Op>(random.below(kOps));
  op.root = static_cast<uint32_t>(random.below(job.ranks));
  op.in_place = random.one_in(2);
  op.tag = random.one_in(8) ? random.below(4) : 0;
  op.collective = random.below(3) < 2 ? Collective::kAllReduce : static_cast<Collective>(random.below(kCollectives));
  const uint64_t kind = random.below(4);
  const uint64_t tail = random.below(2);
  const uint64_t short_by = random.next();

  if (op.collective == Collective::kBroadcast || op.collective == Collective::kAllGather ||
      op.collective == Collective::kBarrier) {
    op.type = Type::kU8;  // copies are sums of one
    op.op = Op::kSum;
  }
  if (op.collective == Collective::kAllGather || op.collective == Collective::kReduceScatter) {
    chunks = (chunks + job.ranks - 1) / job.ranks;
  }
  const uint64_t per_chunk = job.elems_per_chunk(op.type);
  op.elems = chunks * per_chunk;
  if (tail == 1 && op.elems > 0) op.elems -= short_by % per_chunk;
  if (op.collective == Collective::kBarrier) op.elems = 0;

  const bool wide = op.type == Type::kI64 || op.type == Type::kU64 || op.type == Type::kF64;
  const bool real = op.type == Type::kF32 || op.type == Type::kF64 || op.type == Type::kF16 || op.type == Type::kBF16;
  const bool sums = op.op == Op::kSum || op.op == Op::kAvg;
  if (kind < 2 && op.op == Op::kSum && (wide || (op.type == Type::kF32 && job.ranks <= 7))) op.values = Values::kTags;
  if (kind == 2 && real && sums) op.values = Values::kRough;
  return op;
}

// Another call in the same place: one of the things that must agree differs.
void draw_mismatch(const JobPlan& job, CallPlan& call, Stream random) {
  call.odd = call.op;
  switch (random.below(6)) {
    case 0: call.odd.elems += random.between(1, 40); break;
    case 1: call.odd.elems /= 2; break;
    case 2:
      call.odd.type = static_cast<Type>((static_cast<uint32_t>(call.op.type) + random.between(1, kTypes - 1)) % kTypes);
      break;
    case 3: call.odd.op = static_cast<Op>((static_cast<uint32_t>(call.op.op) + random.between(1, kOps - 1)) % kOps); break;
    case 4:
      call.odd.collective = static_cast<Collective>(
          (static_cast<uint32_t>(call.op.collective) + random.between(1, kCollectives - 1)) % kCollectives);
      break;
    default: call.odd.tag += 1; break;
  }
  if (call.odd.values == Values::kTags) call.odd.values = Values::kIntegers;
  const bool one_is_empty = (Shape(job, call.op).chunks() == 0) != (Shape(job, call.odd).chunks() == 0);
  // A rank that brings nothing returns at once, so only what it calls later tells the others; a caller that first waits for
  // the others would wait for ever.
  if (one_is_empty && job.in_flight_max < kOperationsAll) call.odd = call.op;
  if (call.odd.contract() == call.op.contract()) call.odd.tag += 1;
  const uint32_t all = (1u << job.ranks) - 1;
  call.odd_ranks = static_cast<uint32_t>(random.next()) & all;
  if (random.one_in(2)) call.odd_ranks = 1u << random.below(job.ranks);
  if (call.odd_ranks == all) call.odd_ranks &= all - 1;
}

void draw_calls(const Plan& plan, JobPlan& job, uint64_t packets) {
  Stream random(plan.seed, Draw::kOps, job.line, job.epoch);
  const uint64_t chunks_max = std::max<uint64_t>(2, packets / (2 * job.ranks * job.levels));
  const uint64_t ops_max = random.log_between(plan.failover.on ? 8 : 1, 64);
  const uint64_t largest = random.log_between(1, plan.failover.on ? 32 : 128);
  uint64_t chunks = 0;
  for (uint64_t i = 0; i < ops_max && chunks < chunks_max; ++i) {
    CallPlan call;
    const uint64_t size = random.one_in(8) ? 0 : random.log_between(1, largest);
    call.op = draw_op(job, std::min(size, chunks_max), Stream(plan.seed, Draw::kOpKind, job.line * 2 + job.epoch, i));
    Stream odd(plan.seed, Draw::kMismatch, job.line * 2 + job.epoch, i);
    if (job.ranks > 1 && odd.chance_ppm(plan.rate(Fault::kMismatch))) draw_mismatch(job, call, odd);
    chunks += Shape(job, call.op).chunks();
    job.calls.push_back(call);
  }
  if (job.calls.size() >= plan.limits.ops) job.calls.resize(std::max(1u, plan.limits.ops) - 1);
  // The last call is agreed upon and reaches every tree, so that nothing is left waiting for a partner.
  CallPlan last;
  last.op = {.type = Type::kF32, .elems = job.trees * uint64_t{job.elems_per_chunk(Type::kF32)}, .key = random.next()};
  if (job.exam) last.op.elems *= 48;
  job.calls.push_back(last);
}

Seq draw_first_seq(Stream& random, uint32_t window) {
  const uint64_t before = random.below(4 * window + 40);
  const Seq lap = random.below(3) << 32;
  switch (random.below(8)) {
    case 0: return random.below(1u << 20);
    case 1: return 0;
    case 2: return lap + (uint64_t{1} << 31) - before;
    case 3: return random.next() >> 8;
    default: return lap + (uint64_t{1} << 32) - before;
  }
}

uint32_t draw_first_op(Stream& random) {
  const auto before = static_cast<uint32_t>(random.between(1, 12));
  switch (random.below(4)) {
    case 0: return 0;
    case 1: return static_cast<uint32_t>(random.next());
    case 2: return static_cast<uint32_t>(random.below(5) << 16) + (1u << 16) - before;
    default: return 0u - before;
  }
}

JobPlan draw_job(const Plan& plan, uint32_t line, uint32_t epoch, uint32_t ranks, uint64_t packets) {
  const Limits& limits = plan.limits;
  Stream random(plan.seed, Draw::kJob, line, epoch);
  JobPlan job{.line = line, .epoch = epoch};
  // As the controller makes handles: unguessable above, the same index below.
  job.handle = static_cast<uint32_t>(mix(random.next()) & ~uint64_t{0x3ff}) | line;
  job.token = random.next();
  job.ranks = ranks;
  job.trees = std::min<uint32_t>(static_cast<uint32_t>(random.between(1, 4)), limits.trees);
  const auto levels_of_job = static_cast<uint32_t>(random.between(1, 3));
  job.window = 1u << random.below(6);
  job.window_initial = random.one_in(2) ? job.window : static_cast<uint32_t>(random.between(1, job.window));
  job.payload_bytes = random.one_in(4) ? kPayloadMax : kPayloadMax / 2;
  job.first_seq = draw_first_seq(random, job.window);
  job.first_op = draw_first_op(random);
  // A successor that goes on where its predecessor began meets the old packets with numbers that fit.
  if (epoch > 0 && random.one_in(2)) {
    job.first_seq = plan.lines[line][0].first_seq;
    job.first_op = plan.lines[line][0].first_op;
    job.trees = plan.lines[line][0].trees;
  }
  job.in_flight_max = random.one_in(3) ? kOperationsAll : static_cast<uint32_t>(random.log_between(1, 16));
  job.think_max = static_cast<TimeNs>(random.one_in(2) ? 0 : random.log_between(1000, 500000));
  job.skew_max = static_cast<TimeNs>(random.log_between(1, 2000000));
  job.rto_min = static_cast<TimeNs>(random.log_between(200 * kUs, 5 * kMs));
  job.rto_initial = job.rto_min * static_cast<TimeNs>(random.between(1, 8));
  job.rto_max = job.rto_initial * static_cast<TimeNs>(random.between(4, 32));
  const uint64_t paths = random.below(8);  // of all ranks alike, or each its own
  const auto tree_shape = random.next();
  const bool killed = random.one_in(2);
  const auto killed_after = static_cast<TimeNs>(random.log_between(20 * kUs, 10 * kMs));
  job.exam = random.one_in(4) && line == 0 && job.trees * job.ranks <= 16 && !plan.has(Fault::kMismatch);
  job.exam &= !plan.failover.on;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    job.paths.push_back(paths < 3 ? Path::kCopied : paths == 3 ? Path::kShared : static_cast<Path>(random.below(3)));
  }
  for (uint32_t tree = 0; tree < job.trees; ++tree) {
    Stream shape(plan.seed ^ tree_shape, Draw::kTree, line, tree);
    const uint32_t levels = std::min<uint32_t>(limits.levels, static_cast<uint32_t>(shape.between(1, levels_of_job)));
    job.levels = std::max(job.levels, levels);
    job.tree_plans.push_back(draw_tree(job, levels, shape));
  }
  // The last job of a line runs to its end; the exam needs that.
  if (plan.has(Fault::kKill) && killed && epoch + 1 < limits.epochs) job.killed_after = killed_after;
  draw_calls(plan, job, packets);
  return job;
}

FailoverPlan draw_failover(const Plan& plan) {
  Stream random(plan.seed, Draw::kFailover);
  FailoverPlan failover;
  failover.on = random.one_in(2);
  failover.detect = static_cast<TimeNs>(random.log_between(500 * kUs, 20 * kMs));
  failover.mesh_max = static_cast<TimeNs>(random.log_between(1 * kUs, 2 * kMs));
  failover.crash_after_max = random.log_between(4, 2000);
  failover.down_max = static_cast<TimeNs>(random.log_between(1 * kUs, 20 * kMs));
  failover.return_after_max = static_cast<TimeNs>(random.log_between(1 * kUs, 5 * kMs));
  failover.begins_on_ring = random.one_in(8);
  const auto crashes = static_cast<uint32_t>(random.between(1, 5));
  const auto suspicions = static_cast<uint32_t>(random.between(1, 3));
  const auto returns = static_cast<uint32_t>(random.between(1, 6));
  const uint64_t death_after = random.log_between(1, 3000);
  if (plan.has(Fault::kCrash)) failover.crashes = crashes;
  if (plan.has(Fault::kSuspect)) failover.suspicions = suspicions;
  if (plan.has(Fault::kReturn)) failover.returns = returns;
  if (plan.has(Fault::kDeath) && random.one_in(2)) failover.death_after = death_after;
  return failover;
}

uint32_t draw_endpoint(const Plan& plan, Stream& random) {
  const auto line = static_cast<uint32_t>(random.below(plan.lines.size()));
  const auto rank = static_cast<uint32_t>(random.below(plan.lines[line][0].ranks));
  return host_endpoint(line, rank);
}

// The switch that a host talks to on some tree, or that switch's parent.
uint32_t draw_switch(const Plan& plan, uint32_t endpoint, Stream& random) {
  const uint32_t line = (endpoint - kSwitches) / kRanksMax, rank = (endpoint - kSwitches) % kRanksMax;
  const JobPlan& job = plan.lines[line][0];
  const TreePlan& tree = job.tree_plans[random.below(job.trees)];
  return tree.switches[tree.leaf_of_rank[rank].index].id;
}

void draw_schedule(Plan& plan) {
  Stream random(plan.seed, Draw::kSchedule);
  const auto heals_at = static_cast<uint64_t>(plan.heals_at);
  const uint64_t cuts = random.between(1, 4), pauses = random.between(1, 4);
  for (uint64_t i = 0; i < cuts; ++i) {
    Cut cut;
    cut.from = draw_endpoint(plan, random);
    cut.to = draw_switch(plan, cut.from, random);
    if (random.one_in(2)) std::swap(cut.from, cut.to);
    if (random.one_in(4)) {  // all that a switch says to the other switches, one way
      cut.from = static_cast<uint32_t>(random.below(kSwitches));
      cut.to = kEndpoints;
    }
    cut.at = static_cast<TimeNs>(random.below(heals_at));
    cut.until = std::min(plan.heals_at, cut.at + static_cast<TimeNs>(random.log_between(10 * kUs, heals_at)));
    if (plan.has(Fault::kCut)) plan.cuts.push_back(cut);
  }
  for (uint64_t i = 0; i < pauses; ++i) {
    Pause pause;
    pause.endpoint = draw_endpoint(plan, random);
    const bool at_switch = random.one_in(3);
    if (at_switch) pause.endpoint = draw_switch(plan, pause.endpoint, random);
    pause.at = static_cast<TimeNs>(random.below(heals_at));
    pause.until = std::min(plan.heals_at, pause.at + static_cast<TimeNs>(random.log_between(10 * kUs, heals_at)));
    if (plan.has(at_switch ? Fault::kSlowSwitch : Fault::kPause)) plan.pauses.push_back(pause);
  }
  const uint32_t host = draw_endpoint(plan, random);
  const uint32_t node = draw_switch(plan, host, random);
  if (plan.has(Fault::kMark) && random.one_in(3)) plan.marked_link = random.one_in(2) ? host : node;
}

}  // namespace

const char* name(Fault fault) {
  return kFaultRows[static_cast<size_t>(fault)].name;
}

TimeNs Plan::runs_at(uint32_t endpoint, TimeNs at) const {
  for (const Pause& pause : pauses) {
    if (pause.endpoint == endpoint && at >= pause.at && at < pause.until) at = pause.until;
  }
  return at;
}

Plan draw_plan(uint64_t seed, const Limits& limits) {
  Plan plan{.seed = seed, .limits = limits};
  for (int i = 0; i < kFaults; ++i) {
    Stream random(seed, Draw::kFaults, static_cast<uint64_t>(i));
    const bool exists = random.one_in(2) && !(limits.without >> i & 1);
    const uint64_t rate = random.log_between(kFaultRows[i].low_ppm, kFaultRows[i].high_ppm);
    if (exists) plan.ppm[static_cast<size_t>(i)] = static_cast<uint32_t>(rate);
  }
  Stream random(seed, Draw::kRun);
  plan.heals_at = static_cast<TimeNs>(random.log_between(500 * kUs, 100 * kMs));
  plan.delay_min = static_cast<TimeNs>(random.log_between(200, 40 * kUs));
  plan.delay_max = plan.delay_min * static_cast<TimeNs>(random.between(1, 8));
  if (random.one_in(16)) plan.delay_max = static_cast<TimeNs>(random.log_between(1 * kMs, 4 * kMs));
  plan.spike_max = static_cast<TimeNs>(random.log_between(100 * kUs, 50 * kMs));
  plan.timer_slack = static_cast<TimeNs>(random.log_between(1, 200 * kUs));
  plan.switch_burst = static_cast<TimeNs>(random.one_in(2) ? 0 : random.log_between(100, 20 * kUs));
  plan.switches_share = random.one_in(4);
  plan.misalign = static_cast<uint32_t>(random.below(8));
  plan.failover = draw_failover(plan);
  const uint64_t packets = random.log_between(150, 10000);
  const auto lines = std::min<uint32_t>(limits.lines, static_cast<uint32_t>(random.between(1, kLinesMax)));
  for (uint32_t line = 0; line < lines; ++line) {
    Stream shape(seed, Draw::kLine, line);
    const auto ranks = std::min<uint32_t>(limits.ranks, static_cast<uint32_t>(shape.log_between(1, kRanksMax)));
    const auto epochs = plan.failover.on ? 1 : std::min<uint32_t>(limits.epochs, shape.one_in(2) ? 2 : 1);
    plan.lines.emplace_back();
    for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
      plan.lines[line].push_back(draw_job(plan, line, epoch, ranks, packets / (lines * epochs)));
    }
    if (epochs == 1) plan.lines[line][0].killed_after = kNever;
  }
  draw_schedule(plan);
  return plan;
}

std::vector<TreePlan> draw_trees(const Plan& plan, const JobPlan& job, uint32_t epoch) {
  std::vector<TreePlan> trees;
  for (uint32_t tree = 0; tree < job.trees; ++tree) {
    Stream shape(plan.seed, Draw::kTree, job.line * 1000 + epoch, tree);
    trees.push_back(draw_tree(job, static_cast<uint32_t>(shape.between(1, job.levels)), shape));
  }
  return trees;
}

namespace {

[[gnu::format(printf, 2, 3)]] void add(std::string& text, const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  text += line;
}

const char* name(Path path) {
  return path == Path::kCopied ? "udp" : path == Path::kShared ? "shm" : "lossy-shm";
}

}  // namespace

std::string describe(const Plan& plan) {
  std::string text;
  add(text, "seed %llu: faults", static_cast<unsigned long long>(plan.seed));
  for (int i = 0; i < kFaults; ++i) {
    if (plan.ppm[static_cast<size_t>(i)]) add(text, " %s:%u", kFaultRows[i].name, plan.ppm[static_cast<size_t>(i)]);
  }
  add(text, " until %lld us\nlinks: %lld..%lld ns, spikes to %lld us, timers late by up to %lld ns\n",
      static_cast<long long>(plan.heals_at / kUs), static_cast<long long>(plan.delay_min),
      static_cast<long long>(plan.delay_max), static_cast<long long>(plan.spike_max / kUs),
      static_cast<long long>(plan.timer_slack));
  for (const Cut& cut : plan.cuts) {
    add(text, "cut %u -> %u from %lld to %lld us\n", cut.from, cut.to, static_cast<long long>(cut.at / kUs),
        static_cast<long long>(cut.until / kUs));
  }
  for (const Pause& pause : plan.pauses) {
    add(text, "pause of %u from %lld to %lld us\n", pause.endpoint, static_cast<long long>(pause.at / kUs),
        static_cast<long long>(pause.until / kUs));
  }
  if (plan.marked_link != kEndpoints) add(text, "everything from %u is marked\n", plan.marked_link);
  for (const auto& line : plan.lines) {
    for (const JobPlan& job : line) {
      add(text,
          "job %u.%u: %u ranks, %u trees of up to %u levels, window %u (first %u), payload %u, first chunk %#llx, first op "
          "%#x,",
          job.line, job.epoch, job.ranks, job.trees, job.levels, job.window, job.window_initial, job.payload_bytes,
          static_cast<unsigned long long>(job.first_seq), job.first_op);
      add(text, " %u in flight, rto %lld/%lld/%lld us,", job.in_flight_max, static_cast<long long>(job.rto_min / kUs),
          static_cast<long long>(job.rto_initial / kUs), static_cast<long long>(job.rto_max / kUs));
      if (job.killed_after != kNever) add(text, " killed after %lld us,", static_cast<long long>(job.killed_after / kUs));
      add(text, " paths");
      for (const Path path : job.paths) add(text, " %s", name(path));
      text += '\n';
      for (size_t i = 0; i < job.calls.size(); ++i) {
        const CallPlan& call = job.calls[i];
        add(text, "  op %#x: %s, %llu chunks", job.first_op + static_cast<uint32_t>(i),
            gatun::describe(call.op.contract()).c_str(), static_cast<unsigned long long>(Shape(job, call.op).chunks()));
        if (!call.same()) {
          add(text, "; ranks %#x: %s, %llu chunks", call.odd_ranks, gatun::describe(call.odd.contract()).c_str(),
              static_cast<unsigned long long>(Shape(job, call.odd).chunks()));
        }
        text += '\n';
      }
    }
  }
  return text;
}

std::string arguments(uint64_t seed, const Limits& limits) {
  const Limits all;
  std::string text;
  add(text, "--seed %llu", static_cast<unsigned long long>(seed));
  std::string without;
  for (int i = 0; i < kFaults; ++i) {
    if (limits.without >> i & 1) without += (without.empty() ? "" : ",") + std::string(kFaultRows[i].name);
  }
  if (!without.empty()) text += " --without " + without;
  if (limits.ranks != all.ranks) add(text, " --ranks %u", limits.ranks);
  if (limits.trees != all.trees) add(text, " --trees %u", limits.trees);
  if (limits.levels != all.levels) add(text, " --levels %u", limits.levels);
  if (limits.ops != all.ops) add(text, " --ops %u", limits.ops);
  if (limits.lines != all.lines) add(text, " --lines %u", limits.lines);
  if (limits.epochs != all.epochs) add(text, " --epochs %u", limits.epochs);
  return text;
}

}  // namespace gatun::sim
