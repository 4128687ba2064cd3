#include "tests/sim/failover.h"

#include <algorithm>

#include "protocols/big_endian.h"

// The controller, the mesh, and what happens to switches and ranks.

namespace gatun::sim {
namespace {

constexpr TimeNs kProbeEvery = 100 * kUs;

}  // namespace

Failover::Failover(World& world, Network& network, std::vector<std::unique_ptr<Switch>>& switches, const JobPlan& plan)
    : world_(world), network_(network), switches_(switches), plan_(plan), mesh_busy_(plan.ranks * plan.ranks) {}

void Failover::at(TimeNs time, Event event) {
  events_.push_back(std::move(event));
  world_.queue.push(time, EventKind::kFailover, static_cast<uint32_t>(plan_.line << 28 | (events_.size() - 1)));
}

TimeNs Failover::soon(uint64_t salt, TimeNs most) {
  Stream random(world_.plan.seed, Draw::kMesh, plan_.line * 1000 + salt, ++draws_);
  return world_.now + static_cast<TimeNs>(random.log_between(1, static_cast<uint64_t>(most)));
}

void Failover::begin() {
  const FailoverPlan& failover = world_.plan.failover;
  make_epoch();
  Epoch& first = *epochs_[0];
  set_first(first, 0);
  first.run->admit();
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < plan_.ranks; ++rank) names.push_back("rank " + std::to_string(rank) + ".");
  const PathAgreement::Job job{.handle = plan_.handle, .window = plan_.window, .first_op = plan_.first_op};
  members_.resize(plan_.ranks);
  for (uint32_t rank = 0; rank < plan_.ranks; ++rank) {
    members_[rank].path = std::make_unique<PathAgreement>(rank, names, failover.begins_on_ring ? nullptr : &job);
  }
  if (failover.begins_on_ring) {
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank) host(rank).freeze();
    first.run->start();
    give_up(0);
  } else {
    at(world_.now, {.kind = Kind::kProbe});
  }
  for (uint32_t i = 0; i < failover.suspicions; ++i) {
    Stream random(world_.plan.seed, Draw::kFailover, plan_.line + 1, i);
    suspicions_.push_back(random.log_between(1, 200 * plan_.ranks));
  }
}

void Failover::make_epoch() {
  const auto number = static_cast<uint32_t>(epochs_.size());
  auto epoch = std::make_unique<Epoch>();
  epoch->plan = plan_;
  epoch->plan.calls.clear();
  if (number > 0) {
    Stream random(world_.plan.seed, Draw::kJob, plan_.line, 100 + number);
    epoch->plan.epoch = number;
    epoch->plan.handle = static_cast<uint32_t>(mix(random.next()) & ~uint64_t{0x3ff}) | plan_.line;
    epoch->plan.token = random.next();
    // One that goes on where its predecessor began meets the old packets with numbers that fit.
    if (random.one_in(2)) epoch->plan.first_seq += random.below(3 * plan_.window);
    if (random.one_in(2)) epoch->plan.first_op = 0u - static_cast<uint32_t>(random.below(20));
    epoch->plan.tree_plans = draw_trees(world_.plan, plan_, number);
  }
  epoch->run = std::make_unique<JobRun>(world_, network_, switches_, epoch->plan);
  epochs_.push_back(std::move(epoch));
}

// All ranks begin it at the same operation.
void Failover::set_first(Epoch& epoch, uint32_t first_ordinal) {
  if (epoch.known) {
    if (epoch.first_ordinal != first_ordinal) {
      world_.fail("boundary", "ranks begin epoch %u with operations %u and %u", epoch.plan.epoch, epoch.first_ordinal,
                  first_ordinal);
    }
    return;
  }
  epoch.known = true;
  epoch.first_ordinal = first_ordinal;
  epoch.plan.calls.assign(plan_.calls.begin() + first_ordinal, plan_.calls.end());
  epoch.run->begin_calls();
}

void Failover::on_event(uint32_t index) {
  if (finished_) return;
  Event event = std::move(events_[index]);
  events_[index] = {};  // has arrived: cannot get lost any more
  Epoch* epoch = event.epoch < epochs_.size() ? epochs_[event.epoch].get() : nullptr;
  switch (event.kind) {
    case Kind::kProbe:
      // A switch that dies before the job has begun there: the first epoch begins all the same and finds out.
      if (!epoch->crashed && !epoch->given_up && epoch->run->probe()) return at(world_.now + kProbeEvery, std::move(event));
      epoch->proven = true;
      if (event.epoch == 0) {
        epoch->run->start();
        for (uint32_t rank = 0; rank < plan_.ranks; ++rank) at(world_.now, {.kind = Kind::kDetect, .rank = rank});
        return;
      }
      if (epoch->crashed || epoch->given_up) return;
      for (uint32_t rank = 0; rank < plan_.ranks; ++rank)
        at(soon(rank, world_.plan.failover.mesh_max), {.kind = Kind::kStart, .rank = rank, .epoch = event.epoch});
      crash_before_use(*epoch);
      return;
    case Kind::kReturn: {
      const bool up = std::all_of(switches_.begin(), switches_.end(), [](const auto& node) { return node->up(); });
      if (!up) return at(world_.now + kProbeEvery, std::move(event));
      make_epoch();
      epochs_.back()->run->admit();
      return at(world_.now, {.kind = Kind::kProbe, .epoch = epochs_.size() - 1});
    }
    case Kind::kRemove: return epoch->run->remove_all();
    default: break;
  }
  // The rest happens at a rank, which may be paused.
  const TimeNs may = world_.plan.runs_at(host_endpoint(plan_.line, event.rank), world_.now);
  if (may > world_.now && event.kind != Kind::kDie) return at(may, std::move(event));
  if (members_[event.rank].dead) return;
  on_rank_event(event);
  if (!members_[event.rank].dead) step(event.rank);
}

// Some of the switches that ranks are ready for die before they are used.
void Failover::crash_before_use(const Epoch& epoch) {
  Stream random(world_.plan.seed, Draw::kCrash, plan_.line, epoch.plan.epoch);
  if (world_.plan.failover.crashes == 0 || world_.healed() || !random.one_in(4)) return;
  const TreePlan& tree = epoch.plan.tree_plans[random.below(plan_.trees)];
  switches_[tree.switches[random.below(tree.switches.size())].id]->crash_at(soon(1, 2 * world_.plan.failover.mesh_max));
}

void Failover::on_rank_event(Event& event) {
  Member& member = members_[event.rank];
  switch (event.kind) {
    case Kind::kStart:  // one that comes late is of a connection that is closed by now
      if (event.epoch > std::max<size_t>(member.at, member.ready)) member.ready = event.epoch;
      return;
    case Kind::kNotReady:
      if (member.ready == event.epoch) member.ready = 0;
      return;
    case Kind::kSuspect:
      if (event.epoch == member.at) suspect(event.rank, "its control connection has ended");
      return;
    case Kind::kDetect:
      if (event.epoch != member.at || member.path->state() != PathAgreement::State::kSwitch) return;
      if (host(event.rank).silent(world_.plan.failover.detect)) return suspect(event.rank, "no answer");
      return at(world_.now + world_.plan.failover.detect / 2, std::move(event));
    case Kind::kDie: return die(event.rank);
    case Kind::kEnd:
      member.sees_end = true;
      if (event.ordinal == 0) return member.path->on_end(event.from, "closed its connection");
      return member.path->on_failure({Code::kRankLost, "rank " + std::to_string(event.from) + ". ended amidst its bytes"});
    case Kind::kMessage: {
      mesh_wire::Message message;
      const std::string wrong = mesh_wire::decode(event.message, &message);
      if (!wrong.empty()) world_.fail("mesh", "rank %u: %s", event.rank, wrong.c_str());
      return member.path->on_message(event.from, message);
    }
    case Kind::kPart: {
      Part& part = exchange(event.rank, event.ordinal).from[event.from];
      part = {.chunks = std::move(event.chunks), .arrived = true};
      return;
    }
    case Kind::kHanded: {
      Exchange& own = exchange(event.rank, event.ordinal);
      std::move(event.chunks.begin(), event.chunks.end(), std::back_inserter(own.handed));
      own.handed_by |= uint64_t{1} << event.from;
      return;
    }
    default: return;
  }
}

void Failover::suspect(uint32_t rank, const char* why) {
  if (members_[rank].path->state() != PathAgreement::State::kSwitch) return;
  world_.marks.hit(Mark::kSuspected);
  if (world_.trace) world_.log("rank %u of job %u gives up its switch: %s", rank, plan_.line, why);
  members_[rank].path->on_suspect(why);
}

void Failover::on_delivery(uint32_t packet, uint32_t rank) {
  if (finished_ || rank >= members_.size() || members_[rank].dead) return network_.free(packet);
  // A rank has a socket per epoch; what belongs to none of them comes to the present one.
  const uint32_t handle = take32(network_.packet(packet).head.data() + 4);
  size_t to = members_[rank].at;
  for (size_t i = to; i < epochs_.size(); ++i) {
    if (epochs_[i]->plan.handle == handle) to = i;
  }
  epochs_[to]->run->host(rank)->on_delivery(packet);
}

void Failover::on_host(uint32_t rank) {
  if (finished_ || rank >= members_.size() || members_[rank].dead) return;
  for (size_t i = members_[rank].at; i < epochs_.size(); ++i) {
    if (Host* host = epochs_[i]->run->host(rank)) host->on_run();
  }
  ++runs_;
  if (std::find(suspicions_.begin(), suspicions_.end(), runs_) != suspicions_.end()) suspect(rank, "without cause");
  step(rank);
}

void Failover::on_crash(uint32_t switch_id) {
  for (size_t i = 0; i < epochs_.size() && !finished_; ++i) {
    Epoch& epoch = *epochs_[i];
    const bool uses = std::any_of(epoch.plan.tree_plans.begin(), epoch.plan.tree_plans.end(), [&](const TreePlan& tree) {
      return std::any_of(tree.switches.begin(), tree.switches.end(), [&](const auto& node) { return node.id == switch_id; });
    });
    if (!uses || epoch.given_up || epoch.crashed) continue;
    epoch.crashed = true;
    // Some ranks hear of it by their control connection before they miss answers.
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      Stream random(world_.plan.seed, Draw::kCrash, switch_id, ++draws_);
      if (i > 0) at(soon(rank, 5 * kMs), {.kind = Kind::kNotReady, .rank = rank, .epoch = i});
      if (random.one_in(4)) at(soon(rank, 5 * kMs), {.kind = Kind::kSuspect, .rank = rank, .epoch = i});
    }
    if (epoch.gone_over == 0 && i > 0) give_up(i);
  }
}

// Its trees leave the switches some time after the first rank has given it up.
void Failover::give_up(size_t index) {
  Epoch& epoch = *epochs_[index];
  if (epoch.given_up) return;
  epoch.given_up = true;
  at(soon(index, 20 * kMs), {.kind = Kind::kRemove, .epoch = index});
  if (returns_ >= world_.plan.failover.returns) return;
  ++returns_;
  at(soon(index, world_.plan.failover.return_after_max), {.kind = Kind::kReturn});
}

void Failover::mesh(uint32_t from, uint32_t to, Event event) {
  const bool ordered = event.kind == Kind::kMessage || event.kind == Kind::kEnd;
  TimeNs when = soon(from * kRanksMax + to, world_.plan.failover.mesh_max);
  TimeNs& busy = mesh_busy_[from * plan_.ranks + to];
  if (ordered) busy = when = std::max(when, busy);
  event.rank = to;
  event.from = from;
  world_.hash_in(static_cast<uint64_t>(when) << 8 ^ static_cast<uint64_t>(event.kind));
  at(when, std::move(event));
  if (++messages_ != world_.plan.failover.death_after) return;
  Stream random(world_.plan.seed, Draw::kMesh, plan_.line, messages_);
  at(world_.now, {.kind = Kind::kDie, .rank = static_cast<uint32_t>(random.below(plan_.ranks))});
}

void Failover::mesh_all(uint32_t from, const mesh_wire::Message& message) {
  for (uint32_t to = 0; to < plan_.ranks; ++to) {
    if (to != from) mesh(from, to, {.kind = Kind::kMessage, .message = mesh_wire::encode(message)});
  }
}

void Failover::die(uint32_t rank) {
  world_.marks.hit(Mark::kRankDied);
  if (world_.trace) world_.log("rank %u of job %u dies", rank, plan_.line);
  const bool agreeing = std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.path->state() == PathAgreement::State::kFrozen || member.path->state() == PathAgreement::State::kRecover;
  });
  if (agreeing) world_.marks.hit(Mark::kDiedInAgreement);
  died_ = rank;
  members_[rank].dead = true;
  for (size_t i = members_[rank].at; i < epochs_.size(); ++i) {
    if (Host* host = epochs_[i]->run->host(rank)) host->die(false);
  }
  for (uint32_t to = 0; to < plan_.ranks; ++to) {
    if (to == rank) continue;
    // What it has sent last may get lost with it. Whoever waits for bytes of an operation sees that on its own.
    uint32_t cut_off = 0;
    Stream random(world_.plan.seed, Draw::kMesh, plan_.line * 100 + to, 1);
    if (random.one_in(2)) {
      for (Event& event : events_) {
        const bool sent = event.kind == Kind::kMessage || event.kind == Kind::kPart || event.kind == Kind::kHanded;
        if (sent && event.from == rank && event.rank == to) {
          cut_off |= event.kind != Kind::kMessage;
          event = {.kind = Kind::kNotReady, .rank = to};
        }
      }
    }
    mesh(rank, to, {.kind = Kind::kEnd, .ordinal = cut_off});
  }
  check_finished();
}

void Failover::check_finished() {
  if (finished_ || world_.failed()) return;
  for (uint32_t rank = 0; rank < plan_.ranks; ++rank) {
    const Member& member = members_[rank];
    const bool harmless = died_ == kRanksMax || members_[died_].left;
    if (!member.dead && !member.failed && !(harmless && host(rank).done())) return;
  }
  finished_ = true;
  for (const auto& epoch : epochs_) {
    const bool last = epoch.get() == epochs_[members_[0].at].get();
    if (last && died_ == kRanksMax && !epoch->given_up && !epoch->crashed) epoch->run->check_end();
    epoch->run->kill();
    epoch->run->remove_all();
  }
}

std::string Failover::progress() const {
  std::string text = "job " + std::to_string(plan_.line) + " in " + std::to_string(epochs_.size()) + " epochs:";
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    text += "\n  epoch " + std::to_string(member.at) + (member.dead ? " dead" : "") + " state " +
            std::to_string(static_cast<int>(member.path->state())) + " of path epoch " +
            std::to_string(member.path->epoch()) + " misses " + std::to_string(member.path->missing()) + "; ";
    text += epochs_[member.at]->run->host(rank)->progress();
  }
  return text + "\n";
}

}  // namespace gatun::sim
