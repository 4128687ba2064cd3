#include "experiments/net/simulation.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace gatun::net {
namespace {

constexpr uint32_t kMtuMin = 256, kMtuMax = 9216;

Status invalid(const std::string& sentence) {
  return {Code::kInvalidArgument, sentence};
}

Result<Topology> make_topology(const Scenario& s) {
  if (s.topology == "leaf-spine") return Topology::leaf_spine(s.shape);
  if (s.topology == "clos3") return Topology::clos3(s.shape);
  return Topology::read(s.topology, s.shape);
}

Status check(const Scenario& s) {
  if (s.mtu < kMtuMin || s.mtu > kMtuMax) {
    return invalid("an MTU is " + std::to_string(kMtuMin) + " to " + std::to_string(kMtuMax) + " bytes, not " +
                   std::to_string(s.mtu));
  }
  if (s.trees < 1 || s.trees > kTreesMax) return invalid("a job has 1 to " + std::to_string(kTreesMax) + " trees");
  if (s.window != kWindowOfPath && (!std::has_single_bit(s.window) || s.window > kWindowMax)) {
    return invalid("a window is a power of two up to " + std::to_string(kWindowMax) + ", not " + std::to_string(s.window));
  }
  if (s.jobs.empty() && s.load <= 0) return invalid("there is nothing to simulate: give --job, or --load for short flows");
  if (!(s.load >= 0 && s.load <= 1)) return invalid("a load is 0 to 1, a share of the hosts' links");
  if (s.jobs.empty() && s.time <= 0) return invalid("short flows without jobs need --time, how long they arrive");
  if (!(s.scale > 0 && s.scale <= 1)) return invalid("a scale is above 0 and at most 1");
  if (s.iterations < 1) return invalid("a job has 1 iteration or more");
  return {};
}

// Jobs take hosts in the placement's order, one rank a host. They begin at different times, within one computation.
Result<std::vector<JobSpec>> place_jobs(const Scenario& s, const Topology& topology) {
  const std::vector<uint32_t> order = host_order(topology, s.placement, s.seed);
  size_t taken = 0;
  std::vector<JobSpec> jobs;
  for (const JobKind& kind : s.jobs) {
    const Model* model = find_model(kind.model);
    if (!model) return invalid("there is no model '" + kind.model + "'");
    if (kind.ranks < 1 || taken + kind.ranks > order.size()) {
      return invalid("the jobs want more than the " + std::to_string(order.size()) +
                     " hosts: a job has 1 rank or more, each on a host of its own");
    }
    JobSpec job{.model = kind.model,
                .bytes = static_cast<uint64_t>(static_cast<double>(4 * model->parameters) * s.scale),
                .compute = static_cast<TimePs>(static_cast<double>(kind.compute) * s.scale)};
    if (s.reduction == Reduction::kRing && kind.ranks == 1 && job.compute == 0) {
      return invalid("a job of one rank that does not compute takes no time with a ring: give it a compute time");
    }
    sim::Stream random(s.seed, sim::Draw::kNetJob, jobs.size() + 1);
    job.begins = static_cast<TimePs>(random.below(static_cast<uint64_t>(job.compute) + 1));
    job.hosts.assign(order.begin() + static_cast<ptrdiff_t>(taken),
                     order.begin() + static_cast<ptrdiff_t>(taken + kind.ranks));
    taken += kind.ranks;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// The power of two nearest to its share of twice what the longest way to a root and back holds. As much again as the path
// holds stands in queues at most, and one job's windows keep its links busy.
uint32_t window_of_path(const Scenario& s, const Topology& topology, const std::vector<JobSpec>& jobs) {
  const uint64_t packet_bytes = s.mtu + kFrameBytes;
  uint64_t packets = 1;
  for (const JobSpec& job : jobs) {
    const uint32_t root = Trees::roots(topology, job.hosts).front();
    for (const uint32_t host : job.hosts) {
      const Link& link = topology.links()[topology.nic(host) / 2];
      const auto takes = static_cast<TimePs>(packet_bytes * ps_per_byte(link.gbps));
      const TimePs way = (topology.hops(topology.leaf(host), root) + 1) * (link.delay + takes);
      packets = std::max(packets, static_cast<uint64_t>(2 * way / takes));
    }
  }
  uint32_t window = 1;
  while (window < kWindowMax && uint64_t{window} * window * 2 * s.trees * s.trees < 4 * packets * packets) window *= 2;
  return window;
}

Times summary(std::vector<TimePs> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const TimePs t : times) sum += to_ms(t);
  const auto at = [&](double share) {
    return to_ms(times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))]);
  };
  return {.count = times.size(), .mean = sum / static_cast<double>(times.size()), .median = at(0.5), .p99 = at(0.99)};
}

}  // namespace

Result<std::unique_ptr<Simulation>> Simulation::make(const Scenario& scenario) {
  if (Status status = check(scenario); !status.ok()) return status;
  const Sizes* sizes = find_sizes(scenario.sizes);
  if (!sizes) return invalid("there is no distribution of sizes '" + scenario.sizes + "'");
  Result<Topology> topology = make_topology(scenario);
  if (!topology.ok()) return topology.status();
  if (topology->hosts() < 2 && scenario.load > 0) return invalid("short flows need two hosts or more");
  Result<std::vector<JobSpec>> jobs = place_jobs(scenario, topology.value());
  if (!jobs.ok()) return jobs.status();
  Scenario resolved = scenario;
  if (scenario.window == kWindowOfPath) resolved.window = window_of_path(scenario, topology.value(), jobs.value());
  std::unique_ptr<Simulation> simulation(
      new Simulation(resolved, std::move(topology.value()), *sizes, std::move(jobs.value())));
  if (Status status = simulation->add_jobs(); !status.ok()) return status;
  return simulation;
}

Simulation::Simulation(const Scenario& s, Topology topology, const Sizes& sizes, std::vector<JobSpec> jobs)
    : scenario_(s),
      topology_(std::move(topology)),
      network_(topology_, s.limits),
      flows_(network_, {.mtu = s.mtu, .rto_min = s.rto_min, .ecn = s.ecn, .seed = s.seed}),
      trees_(network_),
      workers_(network_, {.mtu = s.mtu,
                          .trees = s.trees,
                          .window = s.window,
                          .congestion_control = s.congestion_control,
                          .rto_min = s.rto_min}),
      rings_(flows_),
      jobs_(network_, std::move(jobs), s.iterations),
      short_flows_(network_, flows_, sizes, s.load, s.seed) {}

Status Simulation::add_jobs() {
  for (uint32_t job = 0; job < jobs_.jobs().size(); ++job) {
    if (scenario_.reduction == Reduction::kRing) {
      add_ring(jobs_.jobs()[job].spec);
    } else if (Status status = add_trees(job); !status.ok()) {
      return status;
    }
  }
  jobs_.start();
  return {};
}

Status Simulation::add_trees(uint32_t job) {
  const std::vector<uint32_t>& hosts = jobs_.jobs()[job].spec.hosts;
  const std::vector<uint32_t> roots = Trees::roots(topology_, hosts);
  const uint64_t hash = sim::mix(sim::mix(scenario_.seed) ^ job);
  const uint64_t first = scenario_.roots == Trees::Roots::kByHash ? hash : uint64_t{job} * scenario_.trees;
  std::vector<std::vector<Trees::Seat>> seats(scenario_.trees);
  for (uint32_t t = 0; t < scenario_.trees; ++t) {
    const uint32_t root = roots[(first + t) % roots.size()];
    Status status =
        trees_.add(job, static_cast<uint8_t>(t), root, scenario_.window, hosts, jobs_.jobs()[job].first_rank, &seats[t]);
    if (!status.ok()) return status;
  }
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    std::vector<Trees::Seat> own;
    for (uint32_t t = 0; t < scenario_.trees; ++t) own.push_back(seats[t][rank]);
    workers_.add(job, hosts[rank], std::move(own));
  }
  return {};
}

void Simulation::add_ring(const JobSpec& job) {
  std::vector<uint32_t> order(job.hosts.size());
  std::iota(order.begin(), order.end(), 0u);
  if (scenario_.ring_order == RingOrder::kByLeaf) {
    const auto leaf = [&](uint32_t rank) { return topology_.leaf(job.hosts[rank]); };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return leaf(a) < leaf(b); });
  }
  rings_.add(job.hosts, order);
}

bool Simulation::step(uint64_t events) {
  Network::Queue::Event event;
  for (; events > 0; --events) {
    if (!network_.next(&event)) return false;
    switch (event.kind) {
      case EventKind::kArrive: on_packet(event.index); break;
      case EventKind::kRank: workers_.on_timer(event.index); break;
      case EventKind::kFlow: flows_.on_timer(event.index); break;
      case EventKind::kComputed: on_computed(event.index); break;
      case EventKind::kShortFlow:
        end_if_due();
        if (arrivals_end_ == 0) short_flows_.on_due();
        break;
    }
  }
  return true;
}

void Simulation::on_packet(uint32_t port) {
  const uint32_t index = network_.take_arrival();
  const Packet& packet = network_.packet(index);
  const uint32_t device = topology_.to(port);
  if (!topology_.is_host(device)) {
    if (packet.kind == PacketKind::kTree) {
      trees_.on_packet(index);
    } else {
      network_.send(topology_.route(device, packet.target, packet.segment.hash), index);
    }
  } else if (packet.kind == PacketKind::kTree) {
    const uint32_t rank = packet.target;
    if (workers_.on_packet(index)) on_reduced(rank);
  } else if (packet.kind == PacketKind::kAck) {
    flows_.on_ack(index);
  } else {
    const Flows::News news = flows_.on_segment(index);
    if (news.complete) short_flows_.on_complete(news.flow);
    if (news.packets == 0 || flows_.rank(news.flow) == kNone) return;
    const uint32_t rank = flows_.rank(news.flow);
    if (rings_.on_packets(rank, news.packets)) on_reduced(rank);
  }
}

void Simulation::on_computed(uint32_t rank) {
  if (scenario_.reduction == Reduction::kTrees) {
    workers_.all_reduce(rank, jobs_.bytes(rank));
  } else if (rings_.all_reduce(rank, jobs_.bytes(rank))) {
    on_reduced(rank);
  }
}

void Simulation::on_reduced(uint32_t rank) {
  jobs_.on_reduced(rank);
  end_if_due();
}

void Simulation::end_if_due() {
  if (arrivals_end_ != 0 || network_.now() < scenario_.time || !jobs_.done()) return;
  arrivals_end_ = network_.now();
  jobs_.stop();
}

double Simulation::progress() const {
  const double by_time = scenario_.time > 0 ? static_cast<double>(network_.now()) / static_cast<double>(scenario_.time) : 1;
  return std::min(1.0, jobs_.jobs().empty() ? by_time : std::min(by_time, jobs_.progress()));
}

Report Simulation::report() const {
  GATUN_CHECK(jobs_.done() && flows_.active() == 0);
  GATUN_CHECK(network_.sent() == network_.arrived() + network_.lost() && network_.in_flight() == 0);
  Report report{.packets = network_.sent(),
                .losses = network_.lost(),
                .resent = workers_.resent() + flows_.resent(),
                .statuses = trees_.stats().statuses,
                .chunks = trees_.stats().chunks,
                .chunks_marked = trees_.stats().marked,
                .queue_mean = network_.queue_bytes().mean(),
                .queue_p99 = network_.queue_bytes().quantile(0.99),
                .queue_max = network_.queue_bytes().max(),
                .arrivals_end = arrivals_end_,
                .end = network_.now(),
                .events = network_.events(),
                .hash = network_.hash()};
  for (const Jobs::Job& job : jobs_.jobs()) {
    const TimePs time = job.ends[scenario_.iterations - 1] - job.spec.begins;
    const double iteration_ms = to_ms(time) / scenario_.iterations;
    report.jobs.push_back({.model = job.spec.model,
                           .ranks = static_cast<uint32_t>(job.spec.hosts.size()),
                           .iterations = job.ends.size(),
                           .iteration_ms = iteration_ms,
                           .all_reduce_ms = iteration_ms - to_ms(job.spec.compute),
                           .job_ms = to_ms(time)});
    report.iteration_ms += iteration_ms / static_cast<double>(jobs_.jobs().size());
    report.job_ms += to_ms(time) / static_cast<double>(jobs_.jobs().size());
  }
  for (uint32_t bin = 0; bin < ShortFlows::kBins; ++bin) report.flows[bin] = summary(short_flows_.times(bin));
  uint64_t up_bytes = 0, up_ports = 0, up_max = 0;
  for (uint32_t p = 0; p < network_.ports().size(); ++p) {
    const Network::Port& port = network_.ports()[p];
    report.marks += port.marks;
    const uint32_t from = topology_.from(p);
    const bool up = topology_.is_fabric(p) && topology_.is_leaf(from);
    if (!up) continue;
    up_bytes += port.bytes;
    up_max = std::max(up_max, port.bytes);
    ++up_ports;
  }
  if (up_bytes > 0)
    report.imbalance = static_cast<double>(up_max) * static_cast<double>(up_ports) / static_cast<double>(up_bytes);
  return report;
}

}  // namespace gatun::net
