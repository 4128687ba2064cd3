#include "tests/sim/job.h"

#include <algorithm>

namespace gatun::sim {

JobRun::JobRun(World& world, Network& network, std::vector<std::unique_ptr<Switch>>& switches, const JobPlan& plan)
    : world_(world),
      network_(network),
      switches_(switches),
      plan_(plan),
      expected_(plan.calls.size()),
      finished_by_(plan.calls.size()),
      places_(plan.trees) {}

void JobRun::admit() {
  for (uint32_t t = 0; t < plan_.trees; ++t) {
    const TreePlan& tree = plan_.tree_plans[t];
    for (const SwitchPlan& node : tree.switches) {
      switches_[node.id]->admit(plan_, static_cast<uint8_t>(t), node);
      if (node.parent >= 0) {
        const Path path = world_.plan.switches_share ? Path::kSharedLossy : Path::kCopied;
        network_.connect(node.id, tree.switches[static_cast<size_t>(node.parent)].id, path);
      }
      const auto switches_below =
          std::count_if(node.children.begin(), node.children.end(), [](auto& c) { return c.is_switch; });
      if (switches_below > 0 && switches_below < static_cast<ptrdiff_t>(node.children.size()))
        world_.marks.hit(Mark::kMixedDepth);
    }
  }
  if (plan_.levels == 3) world_.marks.hit(Mark::kLevels3);
  if (plan_.epoch > 0) world_.marks.hit(Mark::kSucceeded);
  for (uint32_t rank = 0; rank < plan_.ranks; ++rank)
    hosts_.push_back(std::make_unique<Host>(world_, network_, *this, rank));
}

bool JobRun::probe() {
  bool proven = true;
  for (const auto& host : hosts_) {
    host->send_probes();
    proven &= host->proven();
  }
  for (uint32_t t = 0; t < plan_.trees; ++t) {
    for (const SwitchPlan& node : plan_.tree_plans[t].switches) {
      if (switches_[node.id]->proven(plan_.handle, static_cast<uint8_t>(t))) continue;
      proven = false;
      switches_[node.id]->send_probes();
    }
  }
  return !proven;
}

void JobRun::begin_calls() {
  expected_.resize(plan_.calls.size());
  finished_by_.resize(plan_.calls.size());
}

void JobRun::start() {
  started_ = true;
  for (const auto& host : hosts_) {
    Stream random(world_.plan.seed, Draw::kHost, host->endpoint(), plan_.epoch);
    host->start(world_.now + static_cast<TimeNs>(random.below(static_cast<uint64_t>(plan_.skew_max))));
  }
}

bool JobRun::done() const {
  return started_ && std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->done(); });
}

bool JobRun::waits_for_exam() const {
  return started_ && plan_.exam && !examined_ &&
         std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->waits_for_exam(); });
}

// After everything has healed: many chunks without a fault, so that the timeouts come down, then the very last one is lost.
// Nothing later can reveal that loss, so only the timer helps, and it must be as short as the round trips now are.
void JobRun::begin_exam() {
  examined_ = true;
  world_.marks.hit(Mark::kExam);
  network_.lose_none();
  for (const auto& host : hosts_) {
    if (plan_.paths[host->rank()] == Path::kShared) continue;  // loses nothing and so has no short timer
    const Shape shape(plan_, plan_.calls.back().op);
    const uint64_t last = shape.chunks() - 1;
    const uint32_t number = plan_.first_op + static_cast<uint32_t>(plan_.calls.size() - 1);
    exam_tree_ = static_cast<uint32_t>((number + last) % plan_.trees);
    exam_seq_ = host->next_seq(exam_tree_) + shape.chunks() / plan_.trees - 1;
    network_.lose_one(host->endpoint(), plan_.handle, static_cast<uint8_t>(exam_tree_), wire_seq(exam_seq_));
    break;
  }
  for (const auto& host : hosts_) host->release_last_call();
}

TimeNs JobRun::round_trip_max() const {
  const TimeNs hop = 5 * world_.plan.delay_max / 4 + world_.plan.switch_burst + 1;
  return 2 * static_cast<TimeNs>(plan_.levels) * hop;
}

void JobRun::check_exam(const Host& host, uint32_t tree, Seq seq) {
  const TimeNs lost_at = network_.lost_at();
  if (!examined_ || tree != exam_tree_ || seq != exam_seq_ || lost_at == kNever) return;
  // A round trip is prolonged by waiting for the rank with the smallest window, at most W round trips.
  const TimeNs slowest = round_trip_max() * static_cast<TimeNs>(plan_.window + 1);
  const TimeNs bound = 3 * std::max(plan_.rto_min, slowest) + 2 * slowest + 2 * world_.plan.timer_slack;
  if (world_.now - lost_at <= bound) return;
  world_.fail("timeout", "rank %u: one loss on healthy paths cost %lld us, at most %lld us expected (rto %lld us at least)",
              host.rank(), static_cast<long long>((world_.now - lost_at) / kUs), static_cast<long long>(bound / kUs),
              static_cast<long long>(plan_.rto_min / kUs));
}

const Bytes& JobRun::expected(uint32_t index) {
  Bytes& bytes = expected_[index];
  if (bytes.empty()) bytes = expected_result(plan_, plan_.calls[index], plan_.first_op + index);
  return bytes;
}

void JobRun::on_op_finished(uint32_t index) {
  if (++finished_by_[index] == plan_.ranks) Bytes().swap(expected_[index]);
}

void JobRun::check_place(const Host& host, uint32_t tree, Seq seq, uint32_t op, uint64_t index, uint32_t root_us) {
  std::vector<Place>& places = places_[tree];
  const Seq at = seq - plan_.first_seq;
  if (at >= places.size()) places.resize(at + 1);
  Place& place = places[at];
  if (!place.seen) place = {.seen = true, .op = op, .root_us = root_us, .index = index};
  if (place.op != op || place.index != index) {
    world_.fail("places", "rank %u: tree %u chunk %#llx is chunk %llu of op %#x here, chunk %llu of op %#x elsewhere",
                host.rank(), tree, static_cast<unsigned long long>(seq), static_cast<unsigned long long>(index), op,
                static_cast<unsigned long long>(place.index), place.op);
  } else if (place.root_us != root_us) {
    world_.fail("stamps", "rank %u: tree %u chunk %#llx was completed at %u us here, at %u us elsewhere", host.rank(), tree,
                static_cast<unsigned long long>(seq), root_us, place.root_us);
  }
}

void JobRun::check_end() {
  for (uint32_t t = 0; t < plan_.trees; ++t) {
    for (const SwitchPlan& node : plan_.tree_plans[t].switches) {
      const uint32_t open = switches_[node.id]->open_banks(plan_.handle, static_cast<uint8_t>(t));
      if (open > 0) world_.fail("slots", "switch %u: %u chunks of tree %u still wait at the job's end", node.id, open, t);
    }
  }
}

void JobRun::kill() {
  alive_ = false;
  for (const auto& host : hosts_) host->die();
}

void JobRun::remove_tree(uint32_t tree, uint32_t node) {
  switches_[plan_.tree_plans[tree].switches[node].id]->remove(plan_.handle, static_cast<uint8_t>(tree));
}

void JobRun::remove_all() {
  for (uint32_t t = 0; t < plan_.trees; ++t) {
    for (uint32_t i = 0; i < plan_.tree_plans[t].switches.size(); ++i) remove_tree(t, i);
  }
}

}  // namespace gatun::sim
